"""Loss of auto without a pack: its untuned choice and the pack's in one race, for each problem of the pack.

    python benchmarks/untuned_regret.py nvidia-h200 --out untuned.json

Per signature and direction of the pack: the kernel and config that auto takes from it, and those it would take if there
were none, compiled while nothing is timed and raced with a cold cache. The loss is the untuned time over the other;
where both are the same it is 1 and nothing is run. ``--shard 0/2`` does every other problem, ``--join`` prints what
several files hold. Needs the pack's device.
"""

import argparse
import json
import math
import statistics
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from flash_attention_peers import parse_shard, shard

from attn_tune.runtime.active.sources import SHIPPED
from attn_tune.tuner.plan.replay import quantile


class Side(NamedTuple):
    """One of the two that race."""

    kernel: str
    config: Mapping[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pack", nargs="?", default="nvidia-h200", help="name of a shipped pack")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--shard", type=parse_shard, default=(0, 1), help="as in 0/2")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=8, help="compilations at a time")
    parser.add_argument("--join", type=Path, nargs="+", help="files made before; nothing is run")
    args = parser.parse_args()
    if args.join:
        summarise([row for path in args.join for row in json.loads(path.read_text())])
        return 0
    from attn_tune.packs.reader import read_pack

    pack = read_pack(SHIPPED / args.pack)
    known = sorted({(str(row.signature), row.direction) for row in pack.rows})
    found: list[dict[str, Any]] = []
    with ThreadPoolExecutor(args.threads) as pool:
        jobs = [(key, sides(*key)) for key in shard(known, *args.shard)]
        compiled = [
            [] if tuned == untuned else [pool.submit(build, *key, s) for s in (tuned, untuned)]
            for key, (tuned, untuned) in jobs
        ]
        for (key, (tuned, untuned)), pair in zip(jobs, compiled, strict=True):
            times = race_sides(*key, pair, args.rounds) if pair else (1.0, 1.0)
            row = {"signature": key[0], "direction": key[1], "loss": times[1] / times[0]}
            row |= {"tuned": tuned._asdict(), "untuned": untuned._asdict(), "was_run": bool(pair)}
            found.append(row)
            print(
                f"{row['loss']:6.3f}  {untuned.kernel} for {tuned.kernel}  {' '.join(key)}",
                flush=True,
            )
            if args.out:
                args.out.write_text(json.dumps(found, indent=1) + "\n")
    summarise(found)
    return 0


def sides(signature: str, direction: str) -> tuple[Side, Side]:
    """Returns auto's choice with the active packs, and its choice without them.

    Raises:
      LookupError: no pack answers, so that there is nothing to compare with.
    """
    import attn_tune
    from attn_tune.devices.identity import current_device
    from attn_tune.ops.registry import get_op
    from attn_tune.runtime.lookup.question import Question
    from attn_tune.runtime.lookup.resolution import heuristic
    from attn_tune.schema.config import config_to_dict

    answer = attn_tune.explain("flash_attention", signature, direction).answer
    if answer is None or not answer.source:
        raise LookupError(f"no pack answers {direction} of {signature} here")
    question = Question(get_op("flash_attention"), direction, signature, current_device(), None)
    choice = heuristic(question)
    if choice is None:
        raise LookupError(f"no kernel can do {direction} of {signature} here")
    untuned = Side(choice.spec.name, config_to_dict(choice.config))
    return Side(answer.kernel, answer.config), untuned


def ref_of(signature: str, direction: str, side: Side) -> Any:
    """The whole config on the problem, as a ``ConfigRef``."""
    from attn_tune.ops.registry import get_op
    from attn_tune.tuner.protocol import ConfigRef

    return ConfigRef(
        kernel=f"flash_attention/{side.kernel}",
        signature=get_op("flash_attention").parse_signature(signature),
        direction=direction,
        config=side.config,
        part="",
    )


def build(signature: str, direction: str, side: Side) -> Any:
    """The compiled call."""
    import jax

    from attn_tune.ops.contract import load
    from attn_tune.ops.registry import get_op
    from attn_tune.tuner.work.compile import part_function

    op, ref = get_op("flash_attention"), ref_of(signature, direction, side)
    problem = op.from_signature(ref.signature)
    operands = jax.eval_shape(lambda: load(op.inputs)(problem, direction, 0))
    return jax.jit(part_function(ref)).lower(operands).compile()


def race_sides(signature: str, direction: str, compiled: Sequence[Future[Any]], rounds: int) -> list[float]:
    """Median nanoseconds of each; infinite for one that did not compile."""
    import jax

    from attn_tune.devices.identity import current_device
    from attn_tune.ops.contract import load
    from attn_tune.ops.registry import get_op
    from attn_tune.tuner.protocol import MeasurePolicy
    from attn_tune.tuner.work.measure import make_flush, race
    from attn_tune.tuner.work.timers.choose import choose_timer

    op = get_op("flash_attention")
    problem = op.from_signature(op.parse_signature(signature))
    right = [i for i, future in enumerate(compiled) if future.exception() is None]
    calls = [compiled[i].result() for i in right]
    operands = jax.jit(lambda: load(op.inputs)(problem, direction, 0))()
    raced = race(
        [lambda call=call: call(operands) for call in calls],
        timer=choose_timer(),
        policy=MeasurePolicy(rounds=rounds, rounds_max_s=10.0),
        flush=make_flush(current_device()),
        round_id=uuid.uuid4().hex,
    )
    times = dict(zip(right, (m.median_ns for m in raced.measurements), strict=True))
    return [float(times.get(i, math.inf)) for i in range(len(compiled))]


def summarise(rows: Iterable[Mapping[str, Any]]) -> None:
    """Prints what loses most, and how much most of them lose."""
    ordered = sorted(rows, key=lambda row: -row["loss"])
    losses = sorted(row["loss"] for row in ordered)
    print(
        f"\n{len(losses)} problems and directions; {sum(r['was_run'] for r in ordered)} raced, the others are the same"
    )
    if losses:
        p95 = quantile(losses, 0.95)
        print(f"loss: median {statistics.median(losses):.3f}, p95 {p95:.3f}, worst {losses[-1]:.3f}")
    for row in ordered[:15]:
        untuned, tuned = row["untuned"]["kernel"], row["tuned"]["kernel"]
        print(f"{row['loss']:6.3f}  {untuned} for {tuned}  {row['signature']} {row['direction']}")


if __name__ == "__main__":
    sys.exit(main())
