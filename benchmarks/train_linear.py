"""Training of a two-layer Qwen3-Next-like or Kimi-Linear-like model, by our ops and by a plain recurrence.

    python benchmarks/train_linear.py --model qwen3-next --out qwen.json
    python benchmarks/train_linear.py --model kimi-linear --steps 100 --tokens 8192 --out kimi.json
    python benchmarks/train_linear.py --model kimi-linear --tiny --steps 2 --rounds 2

One layer has the gated delta rule or ``kda``, the other full attention (``train_linear_models.py``). From the same
parameters and tokens of a synthetic language train: ``ours`` (auto), ``xla`` (our XLA kernels), and ``recurrence``, a
``lax.scan`` over tokens with dense attention that shares no code with ours. All three round products to bfloat16;
``float32`` is the recurrence in float32 throughout. What lies between it and ``recurrence`` is what that rounding
does to a training. Ours is within rounding if its losses and parameters are at most twice as far from ``float32``.
Distances of parameters are shares of the way that ``float32`` went. Then all take turns, in an ABBA order, for the
time of a step.
"""

import argparse
import functools
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sharded_call import versions
from train_linear_models import IMPLEMENTATIONS, MODELS, Sizes, initial, loss
from training_runs import (
    WARMUP,
    adamw_step,
    compile_all,
    largest_gap,
    share_product_tuning,
    synthetic_tokens,
    take_turns,
    timed_row,
    untrained,
)

import attn_tune

OURS, KERNELS, PLAIN, EXACT = "ours", "xla", "recurrence", "float32"
ALLOWED = 2.0


def main(words: Sequence[str] | None = None) -> int:
    """Trains with every implementation; 0 if ours are within rounding and the loss has fallen."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--model", choices=MODELS, default="qwen3-next")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of a step")
    parser.add_argument("--sequences", type=int, default=8, help="sequences of a step")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20, help="most for the rounds")
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    parser.add_argument("--out", type=Path, help="JSON")
    args = parser.parse_args(words)
    sizes = Sizes()
    if args.tiny:
        sizes, args.tokens, args.sequences = Sizes.tiny(), 64, 2
    share_product_tuning()
    report = versions(jax.devices()[0]) | vars(args) | {"out": None, "sizes": sizes._asdict()}
    report |= train(args, sizes)
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    losses = report["rows"][0]["losses"]
    fell = args.steps <= WARMUP or losses[-1] < losses[0]
    is_right = fell and all(row["within_rounding"] for row in report["rows"])
    print("all within rounding" if is_right else "NOT within rounding" if fell else "the loss did NOT fall")
    return 0 if is_right else 1


def train(args: argparse.Namespace, sizes: Sizes) -> dict[str, Any]:
    """One row an implementation: losses, distances from the others, and step times."""
    length = args.tokens // args.sequences
    tokens = jnp.asarray(synthetic_tokens(1, sizes.vocabulary, args.steps, args.sequences, length + 1))
    fresh = jax.jit(lambda: untrained(initial(args.model, sizes)))
    began = time.monotonic()
    programs = compile_all({name: lower(args, sizes, name, fresh, tokens[0]) for name in IMPLEMENTATIONS})
    print(f"{args.model}: compiled in {time.monotonic() - began:.0f} s", flush=True)
    start, states, losses = flat(fresh().params), {}, {}
    for name, program in programs.items():
        began, state, found = time.monotonic(), fresh(), []
        for batch in tokens:
            state, value = program(state, batch)
            found.append(value)
        states[name], losses[name] = state, [float(x) for x in found]
        print(f"{name}: {args.steps} steps in {time.monotonic() - began:.1f} s", flush=True)
    ends = {name: flat(state.params) for name, state in states.items()}

    def run(name: str) -> None:
        states[name], value = programs[name](states[name], tokens[0])
        value.block_until_ready()

    samples = take_turns({name: functools.partial(run, name) for name in programs}, args.rounds, args.seconds)
    way = float(np.linalg.norm(ends[EXACT] - start))

    def gaps(name: str, other: str) -> dict[str, float]:
        distance = float(np.linalg.norm(ends[name] - ends[other])) / way
        return {"losses": largest_gap(losses[name], losses[other]), "parameters": distance}

    rounding = gaps(PLAIN, EXACT)
    rows = []
    for name in programs:
        row = {"implementation": name, "losses": losses[name], "from float32": gaps(name, EXACT)}
        row["from recurrence"] = gaps(name, PLAIN)
        row["within_rounding"] = all(
            math.isfinite(gap) and gap <= ALLOWED * rounding[what] for what, gap in row["from float32"].items()
        )
        rows.append(row | timed_row(samples[name], samples[OURS], name))
        show(rows[-1])
    return {"way": way, "kernels": kernels(args, sizes), "rows": rows}


def lower(args: argparse.Namespace, sizes: Sizes, name: str, fresh: Any, tokens: jax.Array) -> Any:
    """The step by an implementation, which updates its state in place, ready to be compiled."""
    step = adamw_step(functools.partial(loss, args.model, sizes, IMPLEMENTATIONS[name]), args.rate)
    with jax.default_matmul_precision("highest" if name == EXACT else "default"):
        return jax.jit(step, donate_argnums=0).lower(jax.eval_shape(fresh), tokens)


def flat(params: Any) -> np.ndarray:
    """All parameters as one vector."""
    return np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(params)])


def kernels(args: argparse.Namespace, sizes: Sizes) -> dict[str, str]:
    """The kernels that auto takes for the linear layer, by direction."""
    op, heads = MODELS[args.model], sizes.key_heads if args.model == "qwen3-next" else sizes.heads
    length = args.tokens // args.sequences
    text = f"{op}/v1 b={args.sequences} t={length} n={sizes.heads} k={heads} h={sizes.head_dim} v={sizes.head_dim}"
    found = {}
    for direction in ("fwd", "bwd"):
        answer = attn_tune.explain(op, f"{text} dtype=bfloat16", direction).answer
        found[direction] = f"{answer.kernel}, {answer.rung}" if answer else ""
    return found


def show(row: dict[str, Any]) -> None:
    """One line of the table."""
    low, high = row["interval"]
    far, near = row["from float32"], row["from recurrence"]
    print(
        f"{row['implementation']:12} loss {row['losses'][0]:.4f} to {row['losses'][-1]:.4f}  {row['ms']:8.2f} ms  "
        f"{row['ratio']:.2f} of {OURS} [{low:.2f}, {high:.2f}]  from {EXACT}: losses {far['losses']:.1e}, parameters "
        f"{far['parameters']:.1e}; from {PLAIN}: {near['losses']:.1e}, {near['parameters']:.1e}"
        f"{'' if row['within_rounding'] else ' NOT within rounding'}",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
