"""Runs one of the tuners that ``tuning_speed.py`` compares: ``tuning_contenders.py NAME --record FILE --task JSON``.

Its result goes to the file; its output is its log.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import tuning_sweep
from tuning_peers import CannotRun, tune_ejkernel, tune_tokamax
from tuning_record import Record, Request, Task

RUN: dict[str, Callable[[Request], Record]] = {
    "attn-tune": tuning_sweep.tune,
    "tokamax-triton": lambda request: tune_tokamax(request, "triton"),
    "tokamax-mosaic": lambda request: tune_tokamax(request, "mosaic"),
    "ejkernel": tune_ejkernel,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("name", choices=RUN)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--task", type=json.loads, required=True, help="JSON")
    parser.add_argument("--kernel", default=Request.kernel)
    parser.add_argument("--direction", default=Request.direction)
    parser.add_argument("--max-trials", type=int)
    args = parser.parse_args()
    request = Request(
        task=Task(**args.task),
        record=args.record,
        kernel=args.kernel,
        direction=args.direction,
        max_trials=args.max_trials,
    )
    try:
        RUN[args.name](request).write(args.record)
    except CannotRun as reason:
        Record(failed=str(reason)).write(args.record)
    except Exception as error:  # any error of a tuner is its result; its steps so far stand
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        replace(Record.read(args.record), failed=text).write(args.record)
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
