"""Operations on a filled database, to be killed: decisions, merges, garbage collection, export and import of packs."""

import contextlib
import json
import shutil
import sqlite3
import time

from attn_tune.db import Database, collect_garbage, export_pack, import_pack, merge_database
from attn_tune.packs.reader import read_pack
from tests.soak.kill_facts import DEVICE, ENVIRONMENT, Operation, Say, fill


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
            database.end_run(database.begin_run(device=DEVICE, environment=ENVIRONMENT, argv=["kill"]), "failed")
            with database.transaction() as raw:
                stamp = time.time_ns()
                values = (f"garbage/v1 t={stamp}", json.dumps({"t": stamp}))
                raw.execute("INSERT INTO signature VALUES (?, 'garbage', 1, ?)", values)
            self.wanted = self.facts(database)

    def act(self, say: Say) -> None:
        with Database.open(self.path) as database:
            collect_garbage(database)
            say(1)

    def check(self, said: list[int]) -> list[str]:
        with Database.open(self.path) as database:
            problems = list(database.integrity_check())
            if self.facts(database) != self.wanted:
                problems.append("trials changed")
            if database.decisions() != self.decided:
                problems.append("the decisions changed")
        with contextlib.closing(sqlite3.connect(self.path)) as raw:
            (left,) = raw.execute("SELECT count(*) FROM signature WHERE op = 'garbage'").fetchone()
            if said and left:
                problems.append("acknowledged garbage is still there")
            refusals = raw.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'trial_refuses_delete'").fetchone()[
                0
            ]
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
