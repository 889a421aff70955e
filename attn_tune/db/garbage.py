"""What a lab database can do without. Nothing goes unless asked for, and no decision changes by it."""

import dataclasses
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from attn_tune.db import garbage_queries
from attn_tune.db.database import Database
from attn_tune.db.health import find_quick_problems
from attn_tune.schema import Decision, IntegrityError, UsageError

# Rows that belong to one row of another table and go with it.
PARTS = {"signature": "signature_field", "verification": "verification_error"}
# What is found by what it says; a row that others refer to comes behind them.
CATALOG = (
    "outcome",
    "verification",
    "resources",
    "protocol",
    "config",
    "text",
    "kernel",
    "signature",
    "environment",
    "device_evidence",
    "device",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Garbage:
    """Rows of one table that go, and why."""

    table: str
    rows: int
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GarbageSummary:
    """What went, or would go; bytes are those of the file."""

    items: tuple[Garbage, ...]
    bytes_before: int
    bytes_after: int

    @property
    def rows(self) -> int:
        """All rows."""
        return sum(item.rows for item in self.items)


class _OnlyLooking(Exception):
    """Ends a transaction that must leave nothing behind."""


def collect_garbage(
    database: Database, *, dry_run: bool = False, superseded: bool = False
) -> GarbageSummary:
    """Deletes what nothing rests on, in one transaction, then gives the file's free pages back.

    Rows that nothing refers to, imported packs whose every answer was replaced, runs that recorded nothing. With
    ``superseded`` also trials in environments older than the one that decides about their kernel and problem: no
    decision looks at them, but searches do learn from them. Every problem concerned is decided before and after, and
    nothing is deleted when an answer differs. A dry run does all of it and takes it back.

    Raises:
      IntegrityError: the database is damaged, or a decision would change. Nothing was deleted.
      StorageError: another process writes, the database is read-only, or the disk has no room for the smaller copy.
      UsageError: a run is open here.
    """
    if database.has_open_runs:
        raise UsageError(f"a run is open on {database.path}; end it before collecting garbage")
    before = database.describe().size_bytes
    items: tuple[Garbage, ...] = ()
    try:
        # Deleting a row would look for rows that refer to it, one table scan each; they are checked in one go instead.
        with database.without_foreign_keys(), database.transaction() as connection:
            with database.exclusive():
                items = tuple(_collect(database, connection, superseded=superseded))
            if dry_run:
                raise _OnlyLooking
    except _OnlyLooking:
        return GarbageSummary(items=items, bytes_before=before, bytes_after=before)
    database.vacuum()
    after = database.describe().size_bytes
    return GarbageSummary(items=items, bytes_before=before, bytes_after=after)


def _collect(
    database: Database, connection: sqlite3.Connection, *, superseded: bool
) -> Iterator[Garbage]:
    if problems := find_quick_problems(connection):
        raise IntegrityError(
            f"{database.path} is damaged: {problems[0]}; nothing was deleted; restore it from a copy"
        )
    triggers = connection.execute(garbage_queries.REFUSALS).fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    found = list(_superseded(database, connection)) if superseded else []
    found += _replaced_packs(connection)
    found += _empty_runs(connection)
    for table in CATALOG:
        found += _unreferenced(connection, table)
    for _, sql in triggers:
        connection.execute(sql)
    broken = connection.execute("PRAGMA foreign_key_check").fetchone()
    if broken is not None:
        raise IntegrityError(
            f"row {broken[1]} of {broken[0]} would point to nothing; nothing was deleted"
        )
    yield from found


def _superseded(database: Database, connection: sqlite3.Connection) -> Iterator[Garbage]:
    for statement in garbage_queries.FIND_SUPERSEDED:
        connection.execute(statement)
    texts = [row[0] for row in connection.execute(garbage_queries.SUPERSEDED_SIGNATURES)]
    before = _answers(database, texts)
    kept = " ".join(
        f"AND id NOT IN (SELECT {column} FROM {table} WHERE {column} IS NOT NULL)"
        for table, column in _references(connection, "trial_data")
    )
    deleted = connection.execute(garbage_queries.DROP_SUPERSEDED.format(kept=kept)).rowcount
    if _answers(database, texts) != before:
        raise IntegrityError("a decision would change without older trials; nothing was deleted")
    for name in garbage_queries.SUPERSEDED_TABLES:
        connection.execute(f"DROP TABLE temp.{name}")
    if deleted:
        why = "a newer environment decides about their kernel and problem"
        yield Garbage(table="trial", rows=deleted, why=why)


def _answers(database: Database, texts: list[str]) -> list[Decision]:
    """All that is decided, but for how many trials there were."""
    return [dataclasses.replace(d, trials=0) for d in database.decide(signatures=texts)]


def _replaced_packs(connection: sqlite3.Connection) -> Iterator[Garbage]:
    deleted = connection.execute(garbage_queries.DROP_REPLACED_PACKS).rowcount
    if deleted:
        why = "every answer was replaced by later imports"
        yield Garbage(table="imported_pack", rows=deleted, why=why)


def _empty_runs(connection: sqlite3.Connection) -> Iterator[Garbage]:
    empty = " AND ".join(
        f"id NOT IN (SELECT {column} FROM {table} WHERE {column} IS NOT NULL)"
        for table, column in _references(connection, "run")
    )
    deleted = connection.execute(garbage_queries.DROP_EMPTY_RUNS.format(empty=empty)).rowcount
    if deleted:
        yield Garbage(table="run", rows=deleted, why="no trial was recorded in them")


def _unreferenced(connection: sqlite3.Connection, table: str) -> Iterator[Garbage]:
    part = PARTS.get(table)
    conditions = [
        f"id NOT IN (SELECT {column} FROM {other} WHERE {column} IS NOT NULL)"
        for other, column in _references(connection, table)
        if other != part
    ]
    # The newest row stays: its id must not be given to another row while a reader remembers what it was.
    conditions.append(f"id < (SELECT max(id) FROM {table})")
    deleted = connection.execute(f"DELETE FROM {table} WHERE {' AND '.join(conditions)}").rowcount
    if part and deleted:
        connection.execute(f"DELETE FROM {part} WHERE {table}_id NOT IN (SELECT id FROM {table})")
    if deleted:
        yield Garbage(table=table, rows=deleted, why="nothing refers to them")


def _references(connection: sqlite3.Connection, table: str) -> Iterator[tuple[str, str]]:
    """``(table, column)`` of everything that may refer to ``table``, tables of later versions included."""
    for (other,) in connection.execute(garbage_queries.TABLES).fetchall():
        for row in connection.execute(f"PRAGMA foreign_key_list({other})").fetchall():
            if row["table"] == table:
                yield other, row["from"]
