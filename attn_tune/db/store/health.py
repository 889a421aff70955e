"""Facts about the file and its soundness, for ``doctor``."""

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from attn_tune.db.store.references import References
from attn_tune.db.store.rows import NO_ROW
from attn_tune.db.store.trials import measurement_columns, to_trial
from attn_tune.schema.words import counted

COUNTED = ("run", "trial", "decision", "signature", "device", "environment")
_DERIVED = ("median_us", "min_us", "dispersion")
# Trials whose damage is reported one by one.
_SHOWN = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """Facts about the file.

    Attributes:
      path: where it is.
      size_bytes: its size, with its write-ahead log.
      schema_version: the version of its schema.
      sqlite_version: the version of the SQLite library.
      journal_mode: ``"wal"``, or ``"delete"`` on a network file system.
      counts: rows by table.
    """

    path: Path
    size_bytes: int
    schema_version: int
    sqlite_version: str
    journal_mode: str
    counts: Mapping[str, int]

    def __str__(self) -> str:
        counts = ", ".join(counted(count, name) for name, count in self.counts.items() if count)
        return (
            f"{counts or 'empty'}; {self.size_bytes / 2**20:.1f} MiB, schema {self.schema_version}, "
            f"journal {self.journal_mode}"
        )


def has_wal_reset_bug(version: str) -> bool:
    """Whether this SQLite may, rarely, damage a write-ahead log that several connections reset (fixed in 3.51.3).

    One writer at a time, as here, keeps it away.
    """
    numbers = tuple(int(part) for part in version.split("."))
    return (3, 7, 0) <= numbers < (3, 51, 3) or numbers[:2] == (3, 52)


def describe(connection: sqlite3.Connection, path: Path) -> Description:
    """The facts about the file at ``path``, which ``connection`` has open."""
    size = sum(side.stat().st_size for suffix in ("", "-wal") if (side := path.with_name(path.name + suffix)).exists())
    return Description(
        path=path,
        size_bytes=size,
        schema_version=connection.execute("PRAGMA user_version").fetchone()[0],
        sqlite_version=sqlite3.sqlite_version,
        journal_mode=connection.execute("PRAGMA journal_mode").fetchone()[0],
        counts={name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in COUNTED},
    )


def find_problems(connection: sqlite3.Connection) -> tuple[str, ...]:
    """Everything that is wrong, as sentences; empty for a sound database. Reads every trial."""
    return _find_problems(connection, "PRAGMA integrity_check")


def find_quick_problems(connection: sqlite3.Connection) -> tuple[str, ...]:
    """Most of what can be wrong; faster, as the pages of indexes are not compared with those of tables."""
    return _find_problems(connection, "PRAGMA quick_check")


def _find_problems(connection: sqlite3.Connection, check: str) -> tuple[str, ...]:
    try:
        found = [row[0] for row in connection.execute(check) if row[0] != "ok"]
    except sqlite3.DatabaseError as error:
        return (str(error),)
    try:
        for table, row_id, parent, _ in connection.execute("PRAGMA foreign_key_check"):
            found.append(f"row {row_id} of {table} points to nothing in {parent}")
        return (*found, *_changed_references(connection), *_changed_trials(connection))
    except sqlite3.DatabaseError as error:
        return (*found, str(error))


def _changed_references(connection: sqlite3.Connection) -> Iterator[str]:
    """Rows without the digest or text that they were stored under; SQLite itself has no checksums."""
    references = References(connection)
    keys = {
        "device": (references.device, "id", "digest", "digest"),
        "environment": (references.environment, "digest", "digest", "digest"),
        "signature": (references.signature, "text", "text", "text"),
    }
    for table, (read, key, column, attribute) in keys.items():
        for name, stored in connection.execute(f"SELECT {key}, {column} FROM {table}").fetchall():
            try:
                changed = getattr(read(name), attribute) != stored
            except NO_ROW:
                changed = True
            if changed:
                yield f"row {name} of {table} was changed: it does not have its {attribute}"


def _changed_trials(connection: sqlite3.Connection) -> Iterator[str]:
    """Trials that cannot be, or whose figures are not those of their samples."""
    references = References(connection)
    shown = 0
    for row in connection.execute("SELECT * FROM trial ORDER BY id"):
        try:
            trial = to_trial(references, row)
            derived = measurement_columns(trial.measurement)
            wrong = [name for name in _DERIVED if row[name] != derived[name]]
            if trial.config_digest != row["config_digest"]:
                wrong.append("config_digest")
            why = f"it does not have its {', '.join(wrong)}" if wrong else ""
        except NO_ROW as error:
            why = str(error)
        if why:
            yield f"trial {row['id']} was changed: {why}"
            shown += 1
            if shown == _SHOWN:
                yield "and perhaps others"
                return
