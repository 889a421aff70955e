"""Cost of isolation: the same good configs through a worker process and in this process, in turns.

    python benchmarks/isolation_overhead.py --count 20 --rounds 5 --out overhead.json

Both sides do all that a sweep does with a config: compile, prove on two seeds, time. Each starts with a config that is
not counted, which pays for starting the worker and for the reference. Then they take turns, round by round, and the
ratio of a round is the worker's time over this process's. jax's compilation cache is off, so that both sides compile.
The target is a median ratio of at most 1.1. On a GPU the two hold the device together: nothing else may run there.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

TARGET = 1.1


def main() -> int:
    args = _arguments()
    # This process and the worker share the device's memory, and neither finds on disk what the other compiled.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    from attn_tune.schema.trial import Status
    from attn_tune.tuner.plan.grid import load_grid
    from attn_tune.tuner.protocol import Outcome, Run
    from attn_tune.tuner.run.executor import IsolatedExecutor
    from attn_tune.tuner.work.session import Session

    (point, *_) = load_grid(args.grid).points
    session = Session()
    with IsolatedExecutor() as executor:
        device = executor.identify().device
        requests = _requests(point.signature, device, args)
        sides: dict[str, Callable[[Run], Outcome]] = {
            "process": session.run,
            "worker": executor.run,
        }
        for name, run in sides.items():
            outcome = run(requests[0])
            if outcome.status is not Status.OK:
                print(f"{name}: {outcome.status}: {outcome.reason}", file=sys.stderr)
                return 2
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(args.rounds):
            for name in sorted(sides, reverse=bool(turn % 2)):
                seconds[name].append(_time(sides[name], requests))
            print(f"round {turn}: " + ", ".join(f"{n} {s[-1]:.2f} s" for n, s in seconds.items()))
    ratios = [w / p for w, p in zip(seconds["worker"], seconds["process"], strict=True)]
    ratio = statistics.median(ratios)
    print(f"{device}: with isolation {ratio:.3f}x the time without (target {TARGET})")
    report = {
        "device": device.identity,
        "configs_per_round": len(requests),
        "seconds": {name: [round(s, 3) for s in times] for name, times in seconds.items()},
        "ratios": [round(r, 4) for r in ratios],
        "median_ratio": round(ratio, 4),
    }
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if ratio <= TARGET else 1


def _requests(signature, device, args: argparse.Namespace) -> list:
    """The first configs of the kernel's space that are declared feasible, over and over until there are enough."""
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.ops.registry import get_op
    from attn_tune.schema.config import config_to_dict
    from attn_tune.tuner.protocol import ConfigRef, Run

    problem = get_op(signature.op).from_signature(signature)
    search = get_kernel(args.kernel).searches["fwd"]
    space = [search.heuristic(problem, device), *search.candidates[""](problem, device)]
    configs = [c for c in space if not search.infeasible(problem, device, c)]
    refs = [
        ConfigRef(
            kernel=args.kernel,
            signature=signature,
            direction="fwd",
            config=config_to_dict(configs[i % len(configs)]),
        )
        for i in range(args.count)
    ]
    return [Run(ref=ref, device=device) for ref in refs]


def _time(run: Callable, requests: list) -> float:
    start = time.perf_counter()
    outcomes = [run(request) for request in requests]
    seconds = time.perf_counter() - start
    wrong = [o.reason for o in outcomes if o.status != "ok"]
    if wrong:
        raise SystemExit(f"not all configs are good: {wrong[0]}")
    return seconds


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="what isolation costs")
    parser.add_argument(
        "--grid",
        default="flash_attention/v1 b=1 t=200 s=200 n=2 k=1 h=32 v=32 dtype=float32 causal=1",
    )
    parser.add_argument("--kernel", default="flash_attention/xla")
    parser.add_argument("--count", type=int, default=12, help="configs in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
