"""The planted-fault battery on this machine's device, with faults that only a real GPU has.

    python -m tests.soak.fault_battery --out battery.json

The rows are those of the tests (``tests/planted/planted_battery.py``). On an NVIDIA GPU there are two more: a Triton
kernel that writes far outside its output (a real illegal access), and one that never ends. Every row runs between two
good configs. Printed: what each was called, and whether its neighbours were right. The exit status is 0 if all rows
are named right, no other config was harmed, and no more workers were lost than expected.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from attn_tune.tuner.plan.grid import load_grid
from attn_tune.tuner.protocol import Limits
from attn_tune.tuner.run import executor as executor_module
from attn_tune.tuner.run.executor import IsolatedExecutor
from attn_tune.tuner.run.process import WorkerProcess
from tests.planted.planted_battery import FAULTS, run_battery

PLANTED = Path(__file__).resolve().parents[1] / "planted"
SIGNATURE = "flash_attention/v1 b=1 t=16 s=16 n=2 k=1 h=16 v=16 dtype=float32 causal=1"


def said(reason: str) -> str:
    """Shortens a reason: drops the worker's last output, which is a stack trace full of paths."""
    return reason.partition("; it wrote")[0].partition("Traceback")[0].strip()[:200]


def main() -> int:
    args = _arguments()
    # There the registry finds the planted kernels, as if they were installed; workers get the same path.
    sys.path.insert(0, str(PLANTED))
    started = []

    class Counted(WorkerProcess):
        def __init__(self, *words, **options):
            super().__init__(*words, **options)
            started.append(self.pid)

    executor_module.WorkerProcess = Counted
    (point,) = load_grid(SIGNATURE).points
    limits = Limits(compile=args.limit_s, validate=args.limit_s, memory_gib=args.worker_gib)
    rows, expected = [], 1
    environment = {"PLANTED_GIB": str(args.worker_gib), "PLANTED_CALLBACKS": "1"}
    with IsolatedExecutor(limits=limits, environment=environment) as executor:
        identity = executor.identify()
        device = identity.device
        faults = [fault for fault in FAULTS if device.platform in fault.platforms]
        start = time.monotonic()
        for result in run_battery(executor, faults, point.signature, device):
            fault, outcome = result.fault, result.outcome
            expected += fault.lost
            rows.append(
                {
                    "fault": fault.name,
                    "expected": str(fault.status),
                    "status": str(outcome.status),
                    "reason": said(outcome.reason),
                    "named_right": result.named_right,
                    "neighbours_ok": result.harmless,
                    "seconds": round(time.monotonic() - start, 1),
                }
            )
            start = time.monotonic()
            print(_line(rows[-1]), flush=True)
    right = sum(row["named_right"] for row in rows)
    harmless = sum(row["neighbours_ok"] for row in rows)
    print(
        f"{device}: {right}/{len(rows)} named right, {len(rows) - harmless} harmed a neighbour, ",
        end="",
    )
    print(f"{len(started)} workers started ({expected} expected)")
    report = {
        "device": device.identity,
        "versions": {
            "jax": identity.environment.jax,
            "triton": identity.environment.triton,
            "driver": identity.environment.driver,
        },
        "workers": len(started),
        "workers_expected": expected,
        "rows": rows,
    }
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if right == harmless == len(rows) and len(started) == expected else 1


def _line(row: dict) -> str:
    marks = ("right" if row["named_right"] else "WRONG", "" if row["neighbours_ok"] else "HARMED")
    reason = row["reason"].splitlines()[0][:90] if row["reason"] else ""
    return f"{row['fault']:20} {row['status']:16} {marks[0]:5} {marks[1]:6} {row['seconds']:6.1f} s  {reason}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="the planted-fault battery on this device")
    parser.add_argument("--limit-s", type=float, default=20.0, help="deadline of a phase")
    parser.add_argument("--worker-gib", type=float, default=8.0, help="host memory of a worker")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
