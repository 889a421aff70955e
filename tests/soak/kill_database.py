"""Random ``kill -9`` in the middle of what is done to a lab database: nothing is ever corrupt, half or lost.

    python -m tests.soak.kill_database --seconds 600 --out kill_database.json

Children that are forked from this process do one thing each on a small database: record trials, record many at once,
fold the write-ahead log in, create a database, rebuild decisions, merge another database, collect garbage, export a
pack over an older one (a file or a folder), import a pack over another. They are killed after a random time between
none and what the thing takes. After every kill the database must open and pass its integrity check, what was
acknowledged must be there, and what is all or nothing must be old or new.

Everything that the children import is imported before they are forked, so that they die at their work and not while
they start. A kill takes nothing from the page cache, so a folder in memory (``--folder /dev/shm``) loses no more and no
less than one on a disk. Two operations at a time (``--jobs``) continue in processes of their own.
"""

import argparse
import gc
import json
import math
import multiprocessing
import os
import random
import select
import signal
import sqlite3
import struct
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.kill_operations import OPERATIONS, Operation

# A database is used for so many kills, then the next one begins: growth would slow the checks down.
KILLS_EACH = 50


@dataclass
class Tally:
    """Counts of one operation: kills, children that finished, facts acknowledged by both; and its failures."""

    kills: int = 0
    finished: int = 0
    acknowledged: int = 0
    failures: list[str] = field(default_factory=list)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.kills + other.kills,
            self.finished + other.finished,
            self.acknowledged + other.acknowledged,
            self.failures + other.failures,
        )


def spawn(operation: Operation) -> tuple[int, int]:
    """Forks a child; the pid and the pipe's read end. The child says 2**62 when it begins."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_end)
        return pid, read_end
    status = 1
    try:
        os.close(read_end)

        def say(number: int) -> object:
            return os.write(write_end, struct.pack("<q", number))

        say(2**62)
        operation.act(say)
        status = 0
    except BaseException as error:
        print(f"{type(operation).__name__}: {error!r}", file=sys.stderr)
    finally:
        os._exit(status)


def collect(pid: int, pipe: int) -> tuple[list[int], int]:
    """Returns the numbers that the child acknowledged, and its exit status."""
    data = b""
    while chunk := os.read(pipe, 1 << 16):
        data += chunk
    os.close(pipe)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    numbers = [n for (n,) in struct.iter_unpack("<q", data[: len(data) // 8 * 8])]
    return [n for n in numbers if n != 2**62], status


def undisturbed_s(operation: Operation) -> float:
    """Seconds that the operation takes without a kill; the first of two runs does not count."""
    took = 0.0
    for _ in range(2):
        operation.before()
        pid, pipe = spawn(operation)
        select.select([pipe], [], [])
        start = time.perf_counter()
        said, status = collect(pid, pipe)
        took = time.perf_counter() - start
        problems = operation.check(said)
        if status or problems:
            raise RuntimeError(f"{type(operation).__name__} fails undisturbed: {problems}")
    return took


def kill_once(operation: Operation, span_s: float, rng: random.Random, tally: Tally) -> None:
    """One child, killed after a random part of ``span_s``."""
    operation.before()
    pid, pipe = spawn(operation)
    select.select([pipe], [], [])
    end = time.perf_counter() + rng.uniform(0, 1.1 * span_s)
    while (left := end - time.perf_counter()) > 0:
        time.sleep(left if left > 0.001 else 0)
    os.kill(pid, signal.SIGKILL)
    said, status = collect(pid, pipe)
    tally.acknowledged += len(said)
    if status == -signal.SIGKILL:
        tally.kills += 1
    elif status == 0:
        tally.finished += 1
    else:
        tally.failures.append(f"a child ended with {status}")
    try:
        tally.failures += operation.check(said)
    except Exception as error:  # any error is what this looks for
        tally.failures.append(repr(error))


def torment(kills: int, seed: int, names: list[str], *, until: float = math.inf) -> dict[str, Tally]:
    """Kills until there were ``kills`` or the monotonic clock says ``until``, the operations in turn."""
    rng = random.Random(seed)
    tallies = {name: Tally() for name in names}
    while (left := kills - sum(t.kills for t in tallies.values())) > 0:
        for name in names:
            if time.monotonic() > until:
                return tallies
            tally = tallies[name]
            with tempfile.TemporaryDirectory(prefix="attn-tune-kill-") as folder:
                operation = OPERATIONS[name](Path(folder))
                span_s = undisturbed_s(operation)
                for _ in range(min(KILLS_EACH, -(-left // len(names)))):
                    kill_once(operation, span_s, rng, tally)
    return tallies


def warm_up() -> None:
    """Does everything once, here: what is imported on first use is there in every child."""
    for operation in OPERATIONS.values():
        with tempfile.TemporaryDirectory(prefix="attn-tune-kill-") as folder:
            once = operation(Path(folder))
            once.before()
            once.act(lambda number: number)
    gc.collect()
    gc.freeze()  # children do not copy what a collection would touch


def torment_all(kills: int, seed: int, names: list[str], jobs: int, *, until: float = math.inf) -> dict[str, Tally]:
    """``torment`` in ``jobs`` processes at once, the kills shared out, each with a seed of its own."""
    shares = [kills // jobs + (job < kills % jobs) for job in range(jobs)]
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        waiting = [
            pool.submit(torment, share, seed + job, _rotated(names, job, jobs), until=until)
            for job, share in enumerate(shares)
        ]
        found = [job.result() for job in waiting]
    return {name: sum((tallies[name] for tallies in found), Tally()) for name in names}


def _rotated(names: list[str], job: int, jobs: int) -> list[str]:
    """Another operation to begin with, so that not all do the slow ones at once."""
    first = job * len(names) // jobs
    return names[first:] + names[:first]


def main() -> int:
    args = _arguments()
    start = time.monotonic()
    names = args.only or list(OPERATIONS)
    if args.folder:
        tempfile.tempdir = str(args.folder)
    warm_up()
    until = start + args.seconds
    tallies = torment_all(args.kills, args.seed, names, args.jobs, until=until)
    seconds = time.monotonic() - start
    report: dict[str, Any] = {
        "kills": sum(t.kills for t in tallies.values()),
        "failures": [f"{n}: {f}" for n, t in tallies.items() for f in t.failures][:50],
        "acknowledged": sum(t.acknowledged for t in tallies.values()),
        "by_operation": {
            name: {"kills": t.kills, "finished_before": t.finished, "acknowledged": t.acknowledged}
            for name, t in tallies.items()
        },
        "seconds": round(seconds),
        "seed": args.seed,
        "jobs": args.jobs,
        "folder": str(args.folder or tempfile.gettempdir()),
        "versions": {"python": sys.version.split()[0], "sqlite": sqlite3.sqlite_version},
    }
    print(json.dumps(report, indent=1))
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if report["failures"] else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="random kill -9 of what is done to a database")
    parser.add_argument("--kills", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="no kill after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="operations at a time")
    parser.add_argument("--folder", type=Path, help="where the databases are; /dev/shm is fastest")
    parser.add_argument("--only", nargs="+", choices=sorted(OPERATIONS))
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
