"""Flash attention beside its peers: one run, one device, interleaved, device time.

    python benchmarks/flash_attention_peers.py --grid llama3-8b --lengths 4x4k --out results/flash_attention_h200.json

Every implementation gets the same arrays, is checked against the float32 reference, and takes its turn in rounds with a
cold cache, so that clock drift hits all alike. Printed per implementation: median device time, TFLOP/s (visible pairs
only, backward counted as 2.5 forwards), time relative to cuDNN, and the output's error as a multiple of what plain
attention in the working dtype makes. ``fwd+bwd`` is one forward and all gradients.
"""

import argparse
import json
import math
import statistics
import sys
import uuid
from pathlib import Path
from typing import Any

from peers import Peer, peers

from attn_tune.kernels.flash_attention.problem import Problem, flops
from attn_tune.kernels.tolerance import compare
from attn_tune.tuner.grid import load_grid

BASE = "jax.nn cuDNN"


def main() -> int:
    args = _arguments()
    from attn_tune.runtime.devices import current_device
    from attn_tune.runtime.environments import current_environment

    points = [
        point
        for name in args.grid
        for point in load_grid(name, lengths=args.lengths).points
        if point.op == "flash_attention"
        if not args.point or any(word in point.name for word in args.point)
    ]
    if not points:
        print("no grid point matches", file=sys.stderr)
        return 2
    rows = []
    for point in points[: args.max_points]:
        problem = Problem.from_signature(point.signature)
        for direction in args.direction:
            rows += _measure_point(point.name, problem, direction, peers(args.ejkernel))
            _show(rows, point.name, direction)
    device, environment = current_device(), current_environment()
    report = {
        "device": device.identity,
        "driver": environment.driver,
        "versions": {"jax": environment.jax, "triton": environment.triton},
        "compiler": environment.compiler,
        "rows": rows,
    }
    if args.out:
        args.out.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
    return 0


def _measure_point(
    name: str, problem: Problem, direction: str, implementations: list[Peer]
) -> list[dict[str, Any]]:
    import jax

    from attn_tune.kernels.flash_attention.op import OP
    from attn_tune.kernels.spec import load
    from attn_tune.runtime.devices import current_device
    from attn_tune.tuner.measure import make_flush, race
    from attn_tune.tuner.protocol import MeasurePolicy
    from attn_tune.tuner.timers import choose_timer

    operands = load(OP.inputs)(problem, "fwd", 0)
    arrays = (operands.q, operands.k, operands.v)
    arrays += (operands.sinks,) if operands.sinks is not None else ()
    expected = load(OP.reference)(problem, "fwd", operands)
    baseline = load(OP.baseline)(problem, "fwd", operands)
    rows, runs = [], []
    for peer in implementations:
        row = {"point": name, "signature": problem.signature.text, "direction": direction}
        row["implementation"] = peer.name
        rows.append(row)
        try:
            attend = peer.build(problem)
            if isinstance(attend, str):
                row["unsupported"] = attend
                continue
            if peer.prepare:
                peer.prepare(attend, arrays)
            out = jax.jit(attend)(*arrays)
            errors = compare({"out": out}, {"out": expected["out"]}, {"out": baseline["out"]})
            row["error_ratio"] = round(max(e.ratio for e in errors), 3)
            compiled = jax.jit(_call(attend, direction)).lower(*arrays).compile()
            jax.block_until_ready(compiled(*arrays))
        except Exception as error:  # whatever a peer raises is that peer's result
            row["failed"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            continue
        runs.append((row, lambda run=compiled: run(*arrays)))
    measured = race(
        [run for _, run in runs],
        timer=choose_timer(),
        policy=MeasurePolicy(rounds=20, rounds_max_s=20.0),
        flush=make_flush(current_device()),
        round_id=uuid.uuid4().hex,
    )
    work = flops(problem, "fwd") * (1 if direction == "fwd" else 3.5)
    for (row, _), measurement in zip(runs, measured, strict=True):
        row["median_us"] = round(measurement.median_ns / 1e3, 2)
        row["tflops"] = round(work / measurement.median_ns / 1e3, 1)
        row["samples_ns"] = list(measurement.samples_ns)
        row["timer"] = measurement.protocol.timer
    return rows


def _call(attend: Any, direction: str) -> Any:
    if direction == "fwd":
        return attend
    import jax

    def both(*arrays: Any) -> Any:
        out, pull = jax.vjp(attend, *arrays)
        # A cotangent that is neither constant nor free to compute from the output's shape alone.
        return out, pull(out)

    return both


def _show(rows: list[dict[str, Any]], point: str, direction: str) -> None:
    mine = [row for row in rows if row["point"] == point and row["direction"] == direction]
    base = next(
        (r["median_us"] for r in mine if r["implementation"] == BASE and "median_us" in r), math.nan
    )
    print(f"\n{point}  {direction}")
    for row in mine:
        note = row.get("unsupported") or row.get("failed")
        if note:
            print(f"  {row['implementation']:28s} {note[:110]}")
            continue
        print(
            f"  {row['implementation']:28s} {row['median_us']:10.1f} us {row['tflops']:7.1f} TFLOP/s"
            f"  {base / row['median_us']:5.2f}x cuDNN  error {row['error_ratio']:.2f}"
            f"  spread {_spread(row['samples_ns']):.1%}"
        )
    sys.stdout.flush()


def _spread(samples: list[int]) -> float:
    return (max(samples) - min(samples)) / statistics.median(samples)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grid", action="append", required=True)
    parser.add_argument("--point", action="append", help="keep points whose name holds this word")
    parser.add_argument("--lengths", action="append", default=[], help="as attn-tune sweep")
    parser.add_argument("--direction", nargs="+", default=["fwd", "fwd+bwd"])
    parser.add_argument("--max-points", type=int, default=100)
    parser.add_argument("--ejkernel", choices=["none", "default", "tuned"], default="default")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
