"""What ``kill_database.py`` does to a lab database, and what must be true of it however that ended."""

import contextlib
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from attn_tune.db import Database, collect_garbage, export_pack, import_pack, merge_database
from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.runtime.packs import read_pack
from attn_tune.schema import Device, Environment, Measurement, OutputError, Protocol, Status, Trial

FIXTURES = Path(__file__).parent.parent / "tests/db/data"
OLD_SCHEMAS = (1, 2, 3, 4)
DEVICE = Device(platform="cuda", family="sm_90", variant="nvidia-h200", units=132)
ENVIRONMENT = Environment(jax="0.12.0", jaxlib="0.12.0", triton="3.9.0", source_hash="b2:s")
SIGNATURE = Problem(
    batch=1, q_len=128, kv_len=128, num_q_heads=4, num_kv_heads=2, head_dim=64, v_head_dim=64
).signature
type Say = Callable[[int], object]


def make_trial(number: int, *, median: int | None = None) -> Trial:
    """A trial that is known by its number; every fifth one failed."""
    config = {"i": number}
    shared = {"kernel": "flash_attention/triton", "direction": "fwd", "signature": SIGNATURE}
    shared |= {"device": DEVICE, "environment": ENVIRONMENT, "config": config}
    if number % 5 == 4:
        reason = f"ptxas: {number}"
        return Trial(**shared, status=Status.COMPILE_ERROR, reason=reason)
    middle = 1000 + number % 50 if median is None else median
    samples = (middle, middle + 1, middle - 1)
    return Trial(
        **shared,
        status=Status.OK,
        is_heuristic=number % 7 == 0,
        errors=(OutputError(output="out", error=0.001 * (number % 9), allowed=0.05),),
        measurement=Measurement(
            samples_ns=samples, protocol=Protocol(timer="cupti", warmup=1, flush_l2=True)
        ),
        started_us=number,
    )


class Operation:
    """One thing to do to a database in ``folder``, and what must be true after it was killed."""

    def __init__(self, folder: Path):
        self.path = folder / "lab.db"
        self.folder = folder
        self.acknowledged = 0
        self.prepare()

    def prepare(self) -> None:
        """Once in each new folder."""

    def before(self) -> None:
        """Before each child, in the parent."""

    def act(self, say: Say) -> None:
        """In the child. ``say`` what was acknowledged."""
        raise NotImplementedError

    def check(self, said: list[int]) -> list[str]:
        """In the parent, after the child: what is wrong."""
        raise NotImplementedError


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
        self.acknowledged += len(said)
        if not self.path.exists():
            return ["the database is gone"] if self.said else []
        with Database.open(self.path) as database:
            stored = {trial.config["i"]: trial for trial in database.trials()}
            problems = list(database.integrity_check())
        for number in self.said:
            if number not in stored:
                problems.append(f"acknowledged trial {number} is lost")
            elif stored[number] != make_trial(number):
                problems.append(f"trial {number} changed")
        return problems


class RecordMany(Record):
    """Many trials in one transaction: all or none."""

    def act(self, say: Say) -> None:
        with Database.open(self.path, create=True) as database:
            run = database.begin_run(device=DEVICE, environment=ENVIRONMENT, argv=["kill"])
            numbers = range(self.next, self.next + 200)
            database.record_many(run, [make_trial(i) for i in numbers])
            for i in numbers:
                say(i)
            database.end_run(run, "finished")

    def check(self, said: list[int]) -> list[str]:
        problems = super().check(said)
        if self.path.exists():
            with Database.open(self.path) as database:
                groups = Counter(trial.config["i"] // 10_000 for trial in database.trials())
            problems += [f"{n} of 200 trials of group {g}" for g, n in groups.items() if n != 200]
        return problems


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


class Migrate(Operation):
    """An old database is opened for writing."""

    version = 1

    def prepare(self) -> None:
        self.fixture = self.folder / "old.db"
        with contextlib.closing(sqlite3.connect(self.fixture)) as raw:
            raw.executescript((FIXTURES / f"schema_v{self.version}.sql").read_text())
        self.before()
        with Database.open(self.path) as database:
            self.facts = [repr(trial) for trial in database.trials()]

    def before(self) -> None:
        for suffix in ("-wal", "-shm", "-journal"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        shutil.copy(self.fixture, self.path)

    def act(self, say: Say) -> None:
        with Database.open(self.path):
            say(1)

    def check(self, said: list[int]) -> list[str]:
        self.acknowledged += len(said)
        with contextlib.closing(sqlite3.connect(self.path)) as raw:
            found = raw.execute("PRAGMA user_version").fetchone()[0]
        with Database.open(self.path) as database:
            problems = list(database.integrity_check())
            if [repr(trial) for trial in database.trials()] != self.facts:
                problems.append("facts changed")
            if found not in (self.version, database.describe().schema_version):
                problems.append(f"half a migration: version {found}")
            if said and found == self.version:
                problems.append("an acknowledged migration is lost")
        return problems


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


class Filled(Operation):
    """Starts from a database with some trials, decided."""

    trials = 40

    def prepare(self) -> None:
        with Database.open(self.path, create=True) as database:
            fill(database, range(self.trials))
            database.rebuild_decisions()
            self.decided = database.decisions()

    def facts(self, database: Database) -> list[str]:
        """All trials, in words."""
        return [repr(trial) for trial in database.trials()]


class Rebuild(Filled):
    """Decisions are derived again: the old ones or the new ones, which are the same."""

    def act(self, say: Say) -> None:
        with Database.open(self.path) as database:
            database.rebuild_decisions()
            say(1)

    def check(self, said: list[int]) -> list[str]:
        self.acknowledged += len(said)
        with Database.open(self.path) as database:
            problems = list(database.integrity_check())
            if database.decisions() != self.decided:
                problems.append("the decisions changed")
        return problems


class Merge(Filled):
    """Another host's runs come in: all or none, and once."""

    def prepare(self) -> None:
        super().prepare()
        self.other = self.folder / "other.db"
        self.known = self.trials
        Database.open(self.other, create=True).close()

    def before(self) -> None:
        with Database.open(self.other) as database:
            fill(database, range(10))

    def act(self, say: Say) -> None:
        with Database.open(self.path) as database:
            merge_database(database, self.other)
            say(1)

    def check(self, said: list[int]) -> list[str]:
        self.acknowledged += len(said)
        with Database.open(self.other) as database:
            theirs = database.describe().counts["trial"]
        with Database.open(self.path) as database:
            problems = list(database.integrity_check())
            count = database.describe().counts["trial"]
        wanted = self.trials + theirs
        if count != wanted and (said or count != self.known):
            problems.append(f"{count} trials, not {self.known} or {wanted}")
        self.known = count
        return problems


class Collect(Filled):
    """Garbage goes, the decisions stay."""

    def before(self) -> None:
        with Database.open(self.path) as database:
            database.end_run(
                database.begin_run(device=DEVICE, environment=ENVIRONMENT, argv=["kill"]), "failed"
            )
            with database.transaction() as raw:
                raw.execute(
                    "INSERT INTO text (digest, body) VALUES (?, ?)", (f"b2:{time.time_ns()}", "x")
                )
            self.wanted = self.facts(database)

    def act(self, say: Say) -> None:
        with Database.open(self.path) as database:
            collect_garbage(database)
            say(1)

    def check(self, said: list[int]) -> list[str]:
        self.acknowledged += len(said)
        with Database.open(self.path) as database:
            # The text above has a digest that is not its own.
            problems = [p for p in database.integrity_check() if "of text was changed" not in p]
            if self.facts(database) != self.wanted:
                problems.append("trials changed")
            if database.decisions() != self.decided:
                problems.append("the decisions changed")
        with contextlib.closing(sqlite3.connect(self.path)) as raw:
            left = raw.execute("SELECT count(*) FROM text WHERE body = 'x'").fetchone()[0]
            if said and left > 1:  # The newest row of a table always stays.
                problems.append("acknowledged garbage is still there")
            refusals = raw.execute(
                "SELECT count(*) FROM sqlite_schema WHERE name = 'text_refuses_delete'"
            ).fetchone()[0]
            if refusals != 1:
                problems.append("facts may be deleted")
        return problems


class Export(Filled):
    """A pack is written over an older one: old or new, never half."""

    name = "pack.atpack"

    def prepare(self) -> None:
        super().prepare()
        self.version = 0
        self.pack = self.folder / self.name
        with Database.open(self.path, read_only=True) as database:
            export_pack(database, self.pack, name="lab", version="0", ungated="a test")

    def before(self) -> None:
        self.version += 1

    def act(self, say: Say) -> None:
        with Database.open(self.path, read_only=True) as database:
            export_pack(
                database,
                self.pack,
                name="lab",
                version=str(self.version),
                overwrite=True,
                ungated="a test",
            )
            say(1)

    def check(self, said: list[int]) -> list[str]:
        self.acknowledged += len(said)
        found = int(read_pack(self.pack).version)
        for path in self.folder.iterdir():
            if path.name.startswith(".") and path.is_dir():
                shutil.rmtree(path)
            elif path.name.startswith("."):
                path.unlink()
        if said and found != self.version:
            return [f"acknowledged export {self.version} is lost, {found} is there"]
        return [] if 0 <= found <= self.version else [f"version {found}"]


class ExportFolder(Export):
    """The same as a folder."""

    name = "pack"


class Import(Filled):
    """A pack replaces the answers of another: all of them or none."""

    def prepare(self) -> None:
        super().prepare()
        self.packs = []
        for version, median in ((1, 1000), (2, 2000)):
            path = self.folder / f"source-{version}.db"
            with Database.open(path, create=True) as database:
                fill(database, range(version, 30, version), median=median)
                export_pack(
                    database,
                    self.folder / f"p{version}.atpack",
                    name="p",
                    version=str(version),
                    ungated="a test",
                )
            self.packs.append(self.folder / f"p{version}.atpack")
        self.turn = 0
        with Database.open(self.path) as database:
            import_pack(database, self.packs[0])

    def before(self) -> None:
        self.turn += 1

    def act(self, say: Say) -> None:
        with Database.open(self.path) as database:
            import_pack(database, self.packs[self.turn % 2], policy="replace")
            say(1)

    def check(self, said: list[int]) -> list[str]:
        self.acknowledged += len(said)
        with Database.open(self.path) as database:
            problems = list(database.integrity_check())
        with contextlib.closing(sqlite3.connect(self.path)) as raw:
            versions = {
                row[0]
                for row in raw.execute(
                    "SELECT version FROM imported_row JOIN imported_pack ON imported_pack.id = pack_id"
                )
            }
        if len(versions) != 1 or (said and versions != {str(self.turn % 2 + 1)}):
            problems.append(f"answers of {versions} after {said}")
        return problems


def fill(database: Database, numbers: range, *, median: int | None = None) -> None:
    """One run with these trials."""
    run = database.begin_run(device=DEVICE, environment=ENVIRONMENT, argv=["kill"])
    database.record_many(run, [make_trial(number, median=median) for number in numbers])
    database.end_run(run, "finished")


OPERATIONS: dict[str, type[Operation]] = {
    "record": Record,
    "record_many": RecordMany,
    "checkpoint": Checkpoint,
    "create": Create,
    **{f"migrate_v{n}": type(f"Migrate{n}", (Migrate,), {"version": n}) for n in OLD_SCHEMAS},
    "rebuild": Rebuild,
    "merge": Merge,
    "collect": Collect,
    "export_file": Export,
    "export_folder": ExportFolder,
    "import": Import,
}
