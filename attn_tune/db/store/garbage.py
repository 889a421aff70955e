"""Garbage collection: deletes what a lab database can do without. It runs on request only, and changes no decision."""

import contextlib
import dataclasses
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attn_tune.db.store.health import find_quick_problems
from attn_tune.schema import Decision, IntegrityError, Status

if TYPE_CHECKING:
    from attn_tune.db.database import Database

# Tables of rows that others refer to, and the key of each.
_REFERRED = {"signature": "text", "environment": "digest", "device": "id"}
# The triggers that keep facts as they are; they are put back word for word.
_REFUSALS = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"
_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
_DROP_REPLACED_PACKS = """
DELETE FROM imported_pack WHERE id NOT IN (SELECT pack_id FROM imported_row)
    AND id < (SELECT max(id) FROM imported_pack)
"""
# The last run stays: ``status`` shows it. A run whose trials were deleted stays too, or a merge would bring them back.
_DROP_EMPTY_RUNS = """
DELETE FROM run WHERE status <> 'running' AND trials = 0 AND id < (SELECT max(id) FROM run)
"""
# For each kernel and problem, the environment that decides; then the trials of environments last used before it was
# last right: a source that failed since leaves the kernel without a decision.
_FIND_SUPERSEDED = f"""
CREATE TEMP TABLE superseded AS
WITH uses AS (
    SELECT signature, direction, device.digest AS device, kernel, environment, max(started) AS age,
           max(CASE WHEN status = '{Status.OK}' AND part = '' THEN started END) AS ok_age
    FROM trial JOIN device ON device.id = device_id
    GROUP BY signature, direction, device.digest, kernel, environment
), deciding AS (
    SELECT *, row_number() OVER (PARTITION BY signature, direction, device, kernel
                                 ORDER BY ok_age DESC, environment DESC) AS place
    FROM uses WHERE ok_age IS NOT NULL
)
SELECT trial.id, trial.signature
FROM deciding
JOIN uses AS older USING (signature, direction, device, kernel)
JOIN trial ON trial.signature = older.signature AND trial.direction = older.direction
    AND trial.kernel = older.kernel AND trial.environment = older.environment
JOIN device AS own ON own.id = trial.device_id AND own.digest = older.device
WHERE deciding.place = 1 AND older.age < deciding.ok_age
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Garbage:
    """Rows of one table that are deleted.

    Attributes:
      table: the table.
      rows: the number of rows.
      why: the reason why nothing needs them.
    """

    table: str
    rows: int
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GarbageSummary:
    """The result of a garbage collection, or of a dry run.

    Attributes:
      items: the rows, by table.
      bytes_before: the size of the file before.
      bytes_after: the size of the file after.
    """

    items: tuple[Garbage, ...]
    bytes_before: int
    bytes_after: int


class _DryRun(Exception):
    """Ends a transaction that must leave nothing behind."""


def collect_garbage(database: "Database", *, dry_run: bool = False, superseded: bool = False) -> GarbageSummary:
    """Deletes rows that nothing needs in one transaction, then gives the file's free pages back.

    These are rows that nothing refers to, imported packs whose every answer was replaced, and runs that recorded
    nothing. With ``superseded`` also trials in environments older than the one that decides about their kernel and
    problem: no decision looks at them, but searches do learn from them. Every problem concerned is decided before and
    after, and nothing is deleted when an answer differs. A dry run does all of it and takes it back.

    Raises:
      IntegrityError: the database is damaged, or a decision would change. Nothing was deleted.
      StorageError: another process writes, the database is read-only, or the disk has no room for the smaller copy.
      UsageError: a run is open here.
    """
    before = database.describe().size_bytes
    items: tuple[Garbage, ...] = ()
    with contextlib.suppress(_DryRun), database.exclusive(), database.transaction() as connection:
        items = tuple(_collect(database, connection, superseded=superseded))
        if dry_run:
            raise _DryRun
    if not dry_run:
        database.vacuum()
    after = database.describe().size_bytes
    return GarbageSummary(items=items, bytes_before=before, bytes_after=after)


def _collect(database: "Database", connection: sqlite3.Connection, *, superseded: bool) -> Iterator[Garbage]:
    if problems := find_quick_problems(connection):
        raise IntegrityError(f"{database.path} is damaged: {problems[0]}; nothing was deleted; restore it from a copy")
    connection.execute(_FIND_SUPERSEDED)
    concerned = "SELECT DISTINCT signature FROM temp.superseded"
    texts = [text for (text,) in connection.execute(concerned)] if superseded else []
    before = _answers(database, texts)
    triggers = connection.execute(_REFUSALS).fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    deletions = [
        ("imported_pack", _DROP_REPLACED_PACKS, "every answer was replaced by later imports"),
        ("run", _DROP_EMPTY_RUNS, "no trial was recorded in them"),
    ]
    if superseded:
        chosen = f"id IN (SELECT id FROM temp.superseded) AND {_unused(connection, 'trial', 'id')}"
        why = "a newer environment decides about their kernel and problem"
        deletions.insert(0, ("trial", f"DELETE FROM trial WHERE {chosen}", why))
    for table, key in _REFERRED.items():
        unused = _unused(connection, table, key)
        deletions.append((table, f"DELETE FROM {table} WHERE {unused}", "nothing refers to them"))
    for table, sql, why in deletions:
        if deleted := connection.execute(sql).rowcount:
            yield Garbage(table=table, rows=deleted, why=why)
    if _answers(database, texts) != before:
        raise IntegrityError("a decision would change without older trials; nothing was deleted")
    connection.execute("DROP TABLE temp.superseded")
    for _, sql in triggers:
        connection.execute(sql)


def _answers(database: "Database", texts: list[str]) -> list[Decision]:
    """All that is decided, but for how many trials there were."""
    return [dataclasses.replace(d, trials=0) for d in database.decide(signatures=texts)]


def _unused(connection: sqlite3.Connection, table: str, key: str) -> str:
    """The SQL condition that nothing refers to a row of ``table``; tables that users added count too."""
    conditions = [
        f"{key} NOT IN (SELECT {row['from']} FROM {other} WHERE {row['from']} IS NOT NULL)"
        for (other,) in connection.execute(_TABLES).fetchall()
        for row in connection.execute(f"PRAGMA foreign_key_list({other})").fetchall()
        if row["table"] == table
    ]
    return " AND ".join(conditions) or "TRUE"
