"""Many processes on one lab database at once: no error reaches anybody, and no row is lost.

    python -m tests.soak.crowd --seconds 60 --out crowd.json

A quarter of the writers bring in databases of their own with ``merge_database``, a quarter import packs and rebuild
decisions, the rest take turns at short sweeps (trials one by one). Readers open the
database again and again, read trials and decisions, and check that what they have once seen is still there. At the end
everything that was acknowledged must be stored, once.
"""

import argparse
import json
import multiprocessing
import os
import random
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from attn_tune.db import Database, export_pack, import_pack, merge_database
from attn_tune.schema import StorageError
from tests.soak.kill_facts import DEVICE, ENVIRONMENT, SIGNATURE, fill, make_trial

WAIT_S = 600.0


@dataclass
class Report:
    """Record of one process: numbers of acknowledged trials, seconds of its writes, errors that it saw."""

    kind: str
    numbers: list[int] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """Settings of one run: its folder, counts of writers and readers, and duration in seconds."""

    folder: Path
    writers: int
    readers: int
    seconds: float

    @property
    def path(self) -> Path:
        """The one database."""
        return self.folder / "lab.db"


def turns(end: float) -> Iterator[None]:
    """Turns until the time ``end``; one at least, for on a busy machine a process may start after it."""
    yield
    while time.monotonic() < end:
        yield


def sweep(crowd: Crowd, index: int, end: float, report: Report) -> None:
    """Short sweeps, one after another."""
    number = index * 1_000_000
    for _ in turns(end):
        with Database.open(crowd.path) as database:
            run = begin_in_turn(database)
            for _ in range(10):
                number += 1
                start = time.monotonic()
                database.record(run, make_trial(number))
                report.took_s.append(time.monotonic() - start)
                report.numbers.append(number)
            database.end_run(run, "finished")


def begin_in_turn(database: Database) -> int:
    """A run, as soon as no other process writes; waits for up to ``WAIT_S`` seconds."""
    end, pause_s = time.monotonic() + WAIT_S, 0.01
    while True:
        try:
            return database.begin_run(device=DEVICE, environment=ENVIRONMENT, argv=["crowd"])
        except StorageError as error:
            if "is being written by" not in str(error) or time.monotonic() >= end:
                raise
        # At random, so that those who wait do not all come back at once.
        time.sleep(random.uniform(0, pause_s))
        pause_s = min(1.5 * pause_s, 0.5)


def bring(crowd: Crowd, index: int, end: float, report: Report) -> None:
    """Merges a database that grows."""
    own = crowd.folder / f"own-{index}.db"
    number = index * 1_000_000
    for _ in turns(end):
        numbers = range(number, number + 20)
        number += 20
        with Database.open(own, create=True) as database:
            fill(database, numbers)
        start = time.monotonic()
        with Database.open(crowd.path) as database:
            merge_database(database, own)
        report.took_s.append(time.monotonic() - start)
        report.numbers += numbers
        time.sleep(random.uniform(0, 0.5))


def derive(crowd: Crowd, index: int, end: float, report: Report) -> None:
    """Imports a pack, rebuilds decisions."""
    for _ in turns(end):
        start = time.monotonic()
        with Database.open(crowd.path) as database:
            import_pack(database, crowd.folder / f"{index % 2}.atpack", policy="replace")
            database.rebuild_decisions(signatures=[SIGNATURE])
        report.took_s.append(time.monotonic() - start)
        time.sleep(random.uniform(0, 1))


def read(crowd: Crowd, index: int, end: float, report: Report) -> None:
    """Looks at everything; what was there stays there."""
    seen = 0
    for _ in turns(end):
        start = time.monotonic()
        with Database.open(crowd.path, read_only=True) as database:
            counts = database.describe().counts
            if counts["trial"] < seen:
                report.errors.append(f"{seen} trials became {counts['trial']}")
            seen = counts["trial"]
            database.status()
            if len(database.decisions(rank=0)) > 1:
                report.errors.append("a problem with two winners")
            for _, trial in zip(range(50), database.trials(), strict=False):
                number = trial.config["i"]
                if trial != make_trial(number):
                    report.errors.append(f"trial {number} changed")
        report.took_s.append(time.monotonic() - start)
        time.sleep(random.uniform(0, 0.5))


def work(task: Callable[..., None], crowd: Crowd, index: int, end: float, pipe: Connection) -> None:
    """One process."""
    random.seed(index)
    report = Report(kind=task.__name__)
    try:
        task(crowd, index, end, report)
    except BaseException:
        report.errors.append(traceback.format_exc())
    pipe.send(report)
    pipe.close()


def run(crowd: Crowd) -> list[Report]:
    """All processes from their start to their end."""
    with Database.open(crowd.path, create=True) as database:
        fill(database, range(30))
        database.rebuild_decisions()
        export_pack(database, crowd.folder / "0.atpack", name="p", version="0", ungated="a test")
    with Database.open(crowd.folder / "other.db", create=True) as database:
        fill(database, range(1, 30), median=7000)
        export_pack(database, crowd.folder / "1.atpack", name="p", version="1", ungated="a test")
    tasks: list[Callable[..., None]] = [{0: bring, 1: derive}.get(i % 4, sweep) for i in range(crowd.writers)]
    tasks += [read] * crowd.readers
    context = multiprocessing.get_context("fork")
    end = time.monotonic() + crowd.seconds
    pipes: list[Connection] = []
    children = []
    for index, task in enumerate(tasks):
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=work, args=(task, crowd, index + 1, end, theirs))
        child.start()
        theirs.close()
        pipes.append(ours)
        children.append(child)
    reports: list[Report] = []
    while pipes:
        for pipe in wait(pipes):
            assert isinstance(pipe, Connection)
            try:
                reports.append(pipe.recv())
            except EOFError:
                reports.append(Report(kind="lost", errors=["a process died without a word"]))
            pipes.remove(pipe)
    for child in children:
        child.join()
    return reports


def problems(crowd: Crowd, reports: list[Report]) -> list[str]:
    """Lists acknowledged trials that are lost, trials stored twice and failures of the integrity check."""
    said = {n for report in reports for n in report.numbers} | set(range(30))
    with Database.open(crowd.path) as database:
        stored = [trial.config["i"] for trial in database.trials()]
        found = list(database.integrity_check())
    if len(stored) != len(set(stored)):
        found.append(f"{len(stored) - len(set(stored))} trials are there twice")
    if lost := said - set(stored):
        found.append(f"{len(lost)} acknowledged trials are lost")
    return found


def summary(crowd: Crowd, reports: list[Report]) -> dict[str, Any]:
    """The recorded result."""
    kinds: dict[str, Any] = {}
    for kind in sorted({r.kind for r in reports}):
        took = sorted(s for r in reports if r.kind == kind for s in r.took_s) or [0.0]
        kinds[kind] = {
            "processes": sum(r.kind == kind for r in reports),
            "operations": len(took),
            "p50_ms": round(took[len(took) // 2] * 1e3, 1),
            "p99_ms": round(took[len(took) * 99 // 100] * 1e3, 1),
        }
    return {
        "writers": crowd.writers,
        "readers": crowd.readers,
        "seconds": crowd.seconds,
        "errors": [e for r in reports for e in r.errors][:20],
        "problems": problems(crowd, reports),
        "acknowledged": sum(len(r.numbers) for r in reports),
        "by_kind": kinds,
        "versions": {"python": sys.version.split()[0], "sqlite": sqlite3.sqlite_version},
        "cpus": os.cpu_count(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="many writers and readers on one lab database")
    parser.add_argument("--writers", type=int, default=64)
    parser.add_argument("--readers", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="attn-tune-crowd-") as folder:
        crowd = Crowd(folder=Path(folder), writers=args.writers, readers=args.readers, seconds=args.seconds)
        report = summary(crowd, run(crowd))
    print(json.dumps(report, indent=1))
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if report["errors"] or report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
