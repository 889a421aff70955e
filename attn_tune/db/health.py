"""What the file is and whether it is sound, for ``doctor``."""

import contextlib
import functools
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from attn_tune.db import queries
from attn_tune.db.connection import migrate
from attn_tune.db.filesystem import filesystem_type
from attn_tune.schema import digest_text

COUNTED = {
    "run": "run",
    "trial": "trial_data",
    "measurement": "trial_data WHERE samples IS NOT NULL",
    "decision": "decision",
    "signature": "signature",
    "config": "config",
    "device": "device",
    "environment": "environment",
}
# Tables whose rows are named by the digest of one column.
DIGESTED = {"config": "body", "signature": "text", "text": "body", "device_evidence": "body"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """Facts about the file. ``counts`` are rows by table."""

    path: Path
    size_bytes: int
    schema_version: int
    sqlite_version: str
    journal_mode: str
    filesystem: str
    counts: Mapping[str, int]

    @property
    def has_wal_reset_bug(self) -> bool:
        """See ``has_wal_reset_bug``."""
        return has_wal_reset_bug(self.sqlite_version)

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}s" for name, count in self.counts.items() if count)
        return (
            f"{counts or 'empty'}; {self.size_bytes / 2**20:.1f} MiB, schema {self.schema_version}, "
            f"journal {self.journal_mode}"
        )


def has_wal_reset_bug(version: str) -> bool:
    """This SQLite may, rarely, damage a write-ahead log that several connections reset (fixed in 3.51.3).

    One writer at a time, as here, keeps it away.
    """
    numbers = tuple(int(part) for part in version.split("."))
    return (3, 7, 0) <= numbers < (3, 51, 3) or numbers[:2] == (3, 52)


def describe(connection: sqlite3.Connection, path: Path) -> Description:
    """Looks at the file."""
    size = sum(
        side.stat().st_size
        for suffix in ("", "-wal")
        if (side := path.with_name(path.name + suffix)).exists()
    )
    return Description(
        path=path,
        size_bytes=size,
        schema_version=connection.execute("PRAGMA user_version").fetchone()[0],
        sqlite_version=sqlite3.sqlite_version,
        journal_mode=connection.execute("PRAGMA journal_mode").fetchone()[0],
        filesystem=filesystem_type(path),
        counts={
            name: connection.execute(queries.COUNT_ROWS.format(table=table)).fetchone()[0]
            for name, table in COUNTED.items()
        },
    )


def find_problems(connection: sqlite3.Connection) -> tuple[str, ...]:
    """Everything that is wrong, as sentences; empty for a sound database."""
    return _find_problems(connection, "PRAGMA integrity_check")


def find_quick_problems(connection: sqlite3.Connection) -> tuple[str, ...]:
    """Most of what can be wrong; faster, as the pages of indexes are not compared with those of tables."""
    return _find_problems(connection, "PRAGMA quick_check")


def _find_problems(connection: sqlite3.Connection, check: str) -> tuple[str, ...]:
    try:
        found = [row[0] for row in connection.execute(check) if row[0] != "ok"]
    except sqlite3.DatabaseError as error:
        return (str(error),)
    if missing := _relations() - {row[0] for row in connection.execute(queries.RELATIONS)}:
        return (*found, f"it lacks {', '.join(sorted(missing))}")
    for table, row_id, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        found.append(f"row {row_id} of {table} points to nothing in {parent}")
    strays = connection.execute(queries.OK_WITHOUT_MEASUREMENT).fetchone()[0]
    if strays:
        found.append(f"{strays} trials are ok without a measurement, or the reverse")
    guesses = connection.execute(queries.PREDICTED_WITHOUT_PREDICTION).fetchone()[0]
    if guesses:
        found.append(f"{guesses} trials are predicted without a prediction, or the reverse")
    overlaps = connection.execute(queries.OVERLAPPING_BATCHES).fetchone()[0]
    if overlaps:
        found.append(f"{overlaps} batches of trials overlap others")
    trials = connection.execute(queries.COUNT_ROWS.format(table="trial_data")).fetchone()[0]
    batched = connection.execute(queries.COUNT_BATCHED).fetchone()[0]
    if batched != trials:
        found.append(f"{trials} trials, of which the batches know {batched}")
    return tuple(found) + tuple(_changed_texts(connection))


@functools.cache
def _relations() -> frozenset[str]:
    """The names of the tables and views that a database of this version has."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection)
        return frozenset(row[0] for row in connection.execute(queries.RELATIONS))


def _changed_texts(connection: sqlite3.Connection) -> Iterator[str]:
    """What no longer has the digest it was stored under; SQLite itself has no checksums."""
    for table, column in DIGESTED.items():
        for row in connection.execute(queries.DIGESTED.format(table=table, column=column)):
            if digest_text(str(row["body"])) != row["digest"]:
                yield f"row {row['id']} of {table} was changed: it does not have its digest"
