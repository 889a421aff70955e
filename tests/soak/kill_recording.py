"""Operations that record facts, to be killed: trials one by one and many at once, checkpoints, new databases."""

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterable

from attn_tune.db import Database
from tests.soak.kill_facts import DEVICE, ENVIRONMENT, Operation, Say, make_trial


class Record(Operation):
    """Trials one by one."""

    def prepare(self) -> None:
        self.said: set[int] = set()
        self.next = 0

    def before(self) -> None:
        self.next += 10_000

    def act(self, say: Say) -> None:
        with Database.open(self.path, create=True) as database:
            run = database.begin_run(device=DEVICE, environment=ENVIRONMENT, argv=["kill"])
            for i in range(self.next, self.next + 12):
                database.record(run, make_trial(i))
                say(i)
            database.end_run(run, "finished")

    def check(self, said: list[int]) -> list[str]:
        self.said.update(said)
        if not self.path.exists():
            return ["the database is gone"] if self.said else []
        with Database.open(self.path) as database:
            stored = {trial.config["i"]: trial for trial in database.trials()}
            problems = list(database.integrity_check())
        lost = self.said - stored.keys()
        problems += [f"acknowledged trial {number} is lost" for number in sorted(lost)]
        # All that is there must be as it was recorded, whether that was acknowledged or not.
        problems += [f"trial {n} changed" for n, trial in stored.items() if trial != make_trial(n)]
        return problems + self.check_stored(stored.keys())

    def check_stored(self, numbers: Iterable[int]) -> list[str]:
        """Lists problems with the set of stored trials, given by their numbers."""
        return []


class RecordMany(Record):
    """Many trials in one transaction: all or none."""

    many = 60

    def act(self, say: Say) -> None:
        with Database.open(self.path, create=True) as database:
            run = database.begin_run(device=DEVICE, environment=ENVIRONMENT, argv=["kill"])
            numbers = range(self.next, self.next + self.many)
            database.record_many(run, [make_trial(i) for i in numbers])
            for i in numbers:
                say(i)
            database.end_run(run, "finished")

    def check_stored(self, numbers: Iterable[int]) -> list[str]:
        groups = Counter(number // 10_000 for number in numbers)
        return [f"{n} of {self.many} trials of {g}" for g, n in groups.items() if n != self.many]


class Checkpoint(Record):
    """Trials, and the write-ahead log folded in after each of some."""

    def act(self, say: Say) -> None:
        with Database.open(self.path, create=True) as database:
            run = database.begin_run(device=DEVICE, environment=ENVIRONMENT, argv=["kill"])
            with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as other:
                for i in range(self.next, self.next + 8):
                    database.record(run, make_trial(i))
                    say(i)
                    mode = ("PASSIVE", "FULL", "RESTART", "TRUNCATE")[i % 4]
                    other.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()


class Create(Record):
    """A database where there is none."""

    def before(self) -> None:
        super().before()
        self.said.clear()
        for path in self.folder.glob("*lab.db*"):
            path.unlink()

    def act(self, say: Say) -> None:
        with Database.open(self.path, create=True) as database:
            run = database.begin_run(device=DEVICE, environment=ENVIRONMENT, argv=["kill"])
            database.record(run, make_trial(self.next))
            say(self.next)
