"""Seconds that ``attn-tune report --html`` takes on a lab of thousands of trials, with and without interaction.

    python benchmarks/page_speed.py --trials 5000 --out page_speed.json

The lab is made up by ``lab_trials.py``: one sweep of one device. Each run is a process of its own, as a user starts it;
processor seconds are given beside elapsed ones, since a machine that others use shows in the difference. ``first`` is
the first page of a user, for whom the library for interaction is put together and kept. The bytecode of all modules is
there, as a first command leaves it.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lab_scale import fill
from lab_trials import DEVICES, PER_SIGNATURE, SWEEPS, make_signatures

from attn_tune.db import Database


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--trials", type=int, default=5000, help="at least so many")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, help="JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lab = Path(folder) / "lab.db"
        report = {"trials": make_lab(lab, args.trials), "cpus": os.cpu_count(), "python": sys.version.split()[0]}
        report["forms"] = {
            name: measured(lab, args.runs, options, is_first="first" in name)
            for name, options in (
                ("static", []),
                ("interactive, first", ["--interactive"]),
                ("interactive", ["--interactive"]),
            )
        }
    print(json.dumps(report, indent=1))
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def make_lab(path: Path, least: int) -> int:
    """Fills a database with the sweep of one device; returns how many trials it has."""
    one_sweep = PER_SIGNATURE // len(DEVICES) // SWEEPS
    with Database.open(path, create=True) as database:
        trials = fill(database, make_signatures(-(-least // one_sweep)), 0, DEVICES[:1], sweeps=1)
        database.rebuild_decisions()
    return trials


def measured(lab: Path, runs: int, options: list[str], *, is_first: bool) -> dict[str, Any]:
    """Medians of elapsed and processor seconds, and the page's size in bytes."""
    cache = lab.with_name("cache")
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"XDG_CACHE_HOME": str(cache)}
    page = lab.with_suffix(".html")
    command = [sys.executable, "-m", "attn_tune", "report", "--db", lab, "--html", page, "--overwrite", *options]
    elapsed, cpu = [], []
    for run in range(runs + 1):
        if is_first:
            shutil.rmtree(cache, ignore_errors=True)
        start, before = time.perf_counter(), used()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environ)
        if run:
            elapsed.append(time.perf_counter() - start)
            cpu.append(used() - before)
    return {
        "elapsed_s": round(statistics.median(elapsed), 2),
        "cpu_s": round(statistics.median(cpu), 2),
        "bytes": page.stat().st_size,
    }


def used() -> float:
    """Processor seconds of all processes that this one has started and that ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    raise SystemExit(main())
