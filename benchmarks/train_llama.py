"""A training step of a Llama-like model of 1.2 billion parameters, with our attention beside that of jax.nn by cuDNN.

    python benchmarks/train_llama.py --head-dim 64 --out llama.json
    python benchmarks/train_llama.py --attention auto fa4 triton_hopper+fa4 --head-dim 128 --out llama128.json
    python benchmarks/train_llama.py --tiny --attention auto xla --rounds 2

The model is Llama 3.2 1B: 16 layers, width 2048, perceptrons of 8192, 128,256 tokens, 32 query and 8 key heads of 64,
or 16 and 8 of 128. Products are in bfloat16, parameters and AdamW in float32. Each implementation takes a few steps
from the same parameters and tokens, whose losses are compared; then all take turns, an ABBA order, and a ratio is of
two samples of one round. ``cudnn`` is ``jax.nn.dot_product_attention(implementation="cudnn")``; ``cudnn, scaled`` is
the same with queries times 1.5 and logits divided by it, which rounds everything otherwise: how far its losses are
from cudnn's is the difference that rounding makes. ``none`` has no attention, so that the rest of a step is its time.
Other names are kernels of ours, ``a+b`` the forward of one and the backward of another; ``pack`` is auto with
``--pack``. ``--remat kept`` keeps the operands and results of attention and makes the rest of a layer again in the
backward; ``named`` keeps only what ``jax.checkpoint`` can name, so that the forward of jax.nn runs again there.
"""

import argparse
import contextlib
import functools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from sharded_call import versions
from training_runs import (
    Trained,
    adamw_step,
    compile_all,
    cross_entropy,
    largest_gap,
    rms_norm,
    rotated,
    share_product_tuning,
    swiglu,
    synthetic_tokens,
    take_turns,
    timed_row,
    untrained,
)

import attn_tune

type Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

NAMES = ("flash_attention_out", "flash_attention_lse")
BASE, OTHERWISE, NOTHING = "cudnn", "cudnn, scaled", "none"
# Losses may differ by so many times what rounding otherwise changes; a few steps are few samples of it.
ALLOWED = 4.0


class Sizes(NamedTuple):
    """Sizes of the model.

    Attributes:
      layers, width, inner, vocabulary: of the whole; ``inner`` is the width of perceptrons.
      heads, kv_heads, head_dim: of attention.
    """

    layers: int
    width: int
    inner: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int


def main(words: Sequence[str] | None = None) -> int:
    """Runs every shape; 0 if all losses are equal within rounding."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--head-dim", type=int, default=64, help="64 or 128; heads are as many as make the width")
    parser.add_argument("--shapes", nargs="+", default=["4x4096", "1x32768"], help="sequences x tokens")
    parser.add_argument("--attention", nargs="+", default=["auto"], help="auto, pack, kernels, or two as in a+b")
    parser.add_argument("--pack", type=Path, help="the pack of 'pack'")
    parser.add_argument("--remat", choices=("kept", "named"), default="kept")
    parser.add_argument("--steps", type=int, default=5, help="steps whose losses are compared")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=60, help="most for the rounds of one shape")
    parser.add_argument("--tiny", action="store_true", help="a model for a CPU; the base is 'xla' of jax.nn")
    parser.add_argument("--out", type=Path, help="JSON")
    args = parser.parse_args(words)
    share_product_tuning()
    sizes = Sizes(16, 2048, 8192, 128_256, 2048 // args.head_dim, 8, args.head_dim)
    if args.tiny:
        sizes, args.shapes = Sizes(2, 32, 64, 64, 4, 2, 8), ["2x32"]
    report = versions(jax.devices()[0]) | {"remat": args.remat, "model": sizes._asdict(), "rows": []}
    for shape in args.shapes:
        report["rows"] += measure(args, sizes, shape)
        if args.out:
            args.out.write_text(json.dumps(report, indent=1) + "\n")
    is_right = all(row["within_rounding"] for row in report["rows"])
    print("all losses equal within rounding" if is_right else "losses DIFFER")
    return 0 if is_right else 1


def measure(args: argparse.Namespace, sizes: Sizes, shape: str) -> list[dict[str, Any]]:
    """One row an implementation: losses, step time, and their comparison with the base."""
    sequences, length = map(int, shape.split("x"))
    tokens = jnp.asarray(synthetic_tokens(1, sizes.vocabulary, args.steps, sequences, length + 1))
    fresh = jax.jit(functools.partial(initial, sizes))
    base = "xla" if args.tiny else "cudnn"
    attends: dict[str, Attend] = {
        BASE: functools.partial(of_jax, base, 1.0),
        OTHERWISE: functools.partial(of_jax, base, 1.5),
        **{name: functools.partial(ours, name) for name in args.attention},
        NOTHING: nothing,
    }
    lowered, chosen, failed = {}, {}, {}
    for name, attend in attends.items():
        began = time.monotonic()
        with attn_tune.use_pack(args.pack) if name == "pack" else contextlib.nullcontext():
            try:
                lowered[name] = lower(attend, sizes, args.remat, fresh, tokens[0])
            except Exception as error:  # any error of a kernel that was named is its result
                if name not in args.attention:
                    raise
                failed[name] = f"{type(error).__name__}: {error}"
                continue
            if name in ("auto", "pack"):
                chosen[name] = kernels(sizes, sequences, length)
        print(f"{shape} {name}: lowered in {time.monotonic() - began:.0f} s", flush=True)
    began = time.monotonic()
    programs = compile_all(lowered)
    print(f"{shape}: compiled in {time.monotonic() - began:.0f} s", flush=True)
    losses = {name: descended(program, fresh, tokens) for name, program in programs.items() if name != NOTHING}
    box = [fresh()]

    def run(program: Any) -> None:
        box[0], loss = program(box[0], tokens[0])
        loss.block_until_ready()

    # That one is there for its losses alone.
    raced = {name: functools.partial(run, program) for name, program in programs.items() if name != OTHERWISE}
    samples = take_turns(raced, args.rounds, args.seconds)
    yardstick = largest_gap(losses[OTHERWISE], losses[BASE])
    rows = []
    for name, found in samples.items():
        row = {"shape": shape, "attention": name} | timed_row(found, samples[BASE], f"{shape} {name}")
        if name in losses:
            row |= {"losses": losses[name], "loss_gap": largest_gap(losses[name], losses[BASE])}
        # Two programs with one rounding have no yardstick but float32's own.
        row["within_rounding"] = row.get("loss_gap", 0.0) <= ALLOWED * max(yardstick, 2.0**-20)
        row |= {"rounding_gap": yardstick, "kernels": chosen.get(name)}
        rest = timed_row(found, samples[NOTHING], f"{shape} {name} alone")
        row["attention_share"] = 1 - 1 / rest["ratio"]
        rows.append(row)
        show(row)
    for name, reason in failed.items():
        print(f"{shape:8} {name:20} cannot: {reason}")
        rows.append(
            {"shape": shape, "attention": name, "cannot": reason, "within_rounding": name not in ("auto", "pack")}
        )
    return rows


def lower(attend: Attend, sizes: Sizes, remat: str, fresh: Any, tokens: jax.Array) -> Any:
    """The step, which updates its state in place, ready to be compiled."""
    step = adamw_step(functools.partial(loss, attend, sizes, remat), 3e-4)
    return jax.jit(step, donate_argnums=0).lower(jax.eval_shape(fresh), tokens)


def descended(program: Any, fresh: Any, tokens: jax.Array) -> list[float]:
    """The loss of each step from fresh parameters."""
    state, found = fresh(), []
    for batch in tokens:
        state, value = program(state, batch)
        found.append(float(value))
    return found


def initial(sizes: Sizes) -> Trained:
    """Random parameters in float32, layers stacked along the first axis."""
    s, keys = sizes, iter(jax.random.split(jax.random.key(0), 8))

    def draw(rows: int, columns: int) -> jax.Array:
        return jax.random.normal(next(keys), (s.layers, rows, columns)) * rows**-0.5

    layers = {
        "q": draw(s.width, s.heads * s.head_dim),
        "k": draw(s.width, s.kv_heads * s.head_dim),
        "v": draw(s.width, s.kv_heads * s.head_dim),
        "o": draw(s.heads * s.head_dim, s.width),
        "gate": draw(s.width, s.inner),
        "up": draw(s.width, s.inner),
        "down": draw(s.inner, s.width),
        "norms": jnp.ones((s.layers, 2, s.width)),
    }
    embedding = jax.random.normal(next(keys), (s.vocabulary, s.width)) * s.width**-0.5
    return untrained({"layers": layers, "embedding": embedding, "norm": jnp.ones(s.width)})


def loss(attend: Attend, sizes: Sizes, remat: str, params: Any, tokens: jax.Array) -> jax.Array:
    """Mean cross-entropy of the next token; tokens ``[sequences, length + 1]``."""

    def before(x: jax.Array, w: Any) -> tuple[jax.Array, ...]:
        y = rms_norm(x, w["norms"][0])
        q, k, v = ((y @ w[n].astype(y.dtype)).reshape(*y.shape[:2], -1, sizes.head_dim) for n in "qkv")
        return rotated(q), rotated(k), v

    def after(x: jax.Array, out: jax.Array, w: Any) -> jax.Array:
        x = x + out.reshape(*x.shape[:2], -1) @ w["o"].astype(x.dtype)
        parts = (w[n].astype(x.dtype) for n in ("gate", "up", "down"))
        return x + swiglu(rms_norm(x, w["norms"][1]), *parts)

    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        if remat == "named":
            return after(x, attend(*before(x, w)), w), None
        return jax.checkpoint(after)(x, attend(*jax.checkpoint(before)(x, w)), w), None

    if remat == "named":
        layer = jax.checkpoint(layer, policy=jax.checkpoint_policies.save_only_these_names(*NAMES))
    embedding = params["embedding"].astype(jnp.bfloat16)
    # Embeddings are small since they are the head, too.
    x = embedding[tokens[:, :-1]] * sizes.width**0.5
    x, _ = jax.lax.scan(layer, x, params["layers"])
    x = rms_norm(x, params["norm"]).reshape(-1, sizes.width)
    return cross_entropy(x, embedding.T, tokens[:, 1:].reshape(-1), 2048)


def ours(name: str, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention by attn-tune: auto, or the kernel of a name, or the two kernels of ``forward+backward``."""
    platform = None
    if name not in ("auto", "pack"):
        forward, _, backward = name.partition("+")
        platform = {"fwd": forward, "bwd": backward or forward}
    return attn_tune.flash_attention(q, k, v, causal=True, platform=platform)


def of_jax(implementation: Any, factor: float, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """The same by JAX; queries times ``factor``, which the scale takes back."""
    scale = q.shape[-1] ** -0.5 / factor
    q = q if factor == 1 else q * factor
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, scale=scale, implementation=implementation)


def nothing(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """The sum of each query, its key and its value: every operand has a gradient, and no time is spent."""
    return q + jnp.repeat(k + v, q.shape[2] // k.shape[2], axis=2)


def kernels(sizes: Sizes, sequences: int, length: int) -> dict[str, str]:
    """The kernel of each direction that a call with these sizes gets, and which step of the lookup named it."""
    s = sizes
    heads = f"n={s.heads} k={s.kv_heads} h={s.head_dim} v={s.head_dim}"
    text = f"flash_attention/v1 b={sequences} t={length} s={length} {heads}"
    found = {}
    for direction in ("fwd", "bwd"):
        answer = attn_tune.explain("flash_attention", f"{text} dtype=bfloat16 causal=1", direction).answer
        found[direction] = f"{answer.kernel}, {answer.rung}" if answer else ""
    return found


def show(row: dict[str, Any]) -> None:
    """One line of the table."""
    low, high = row["interval"]
    equal = f"losses off {row['loss_gap']:.1e}, rounding {row['rounding_gap']:.1e}" if "loss_gap" in row else ""
    ratio = f"{row['ratio']:.3f} of {BASE} [{low:.3f}, {high:.3f}]  attention {row['attention_share']:.0%}"
    print(
        f"{row['shape']:8} {row['attention']:20} {row['ms']:8.1f} ms  {ratio}  {equal}  {row['kernels'] or ''}",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
