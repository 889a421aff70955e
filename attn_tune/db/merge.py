"""Takes the runs of another lab database into this one: sweeps of several hosts come together this way."""

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from attn_tune.db import health, merge_queries, queries
from attn_tune.db.connection import open_reader, storage_errors
from attn_tune.db.database import Database
from attn_tune.schema import IntegrityError


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeSummary:
    """How many runs and trials were new."""

    runs: int
    trials: int


def merge_database(database: Database, path: str | os.PathLike[str]) -> MergeSummary:
    """Copies the facts of the lab database at ``path``: all that is new or nothing. The source is only read.

    Runs are known by an id of their own and their trials only ever grow, so merging again adds what came since.
    Rows go from file to file inside SQLite. Decisions are not copied: rebuild them.

    Raises:
      NoDataError, IntegrityError, StorageError: as ``Database.open``.
    """
    uri = check_source(path)
    # Looking up four references of every trial again takes a quarter of the time: their ids come from maps of our rows.
    with (
        database.attached(uri, merge_queries.SOURCE),
        database.without_foreign_keys(),
        database.transaction() as target,
    ):
        try:
            return _copy(target)
        except sqlite3.IntegrityError as error:
            raise IntegrityError(
                f"{path} says what cannot be: {error}; nothing was merged"
            ) from error


def check_source(path: str | os.PathLike[str]) -> str:
    """Proves that the lab database at ``path`` is sound, for its rows are copied as they are; returns its URI.

    Raises:
      NoDataError, IntegrityError, StorageError: as ``Database.open``.
    """
    path = Path(path)
    with storage_errors(path):
        reader, uri = open_reader(path)
        try:
            problems = health.find_quick_problems(reader)
        finally:
            reader.close()
    if problems:
        raise IntegrityError(f"{path} is damaged: {'; '.join(problems[:3])}; nothing was merged")
    return uri


def _copy(target: sqlite3.Connection) -> MergeSummary:
    for table in merge_queries.CATALOG:
        for statement in table.statements(_columns(target, table.name)):
            target.execute(statement)
    runs = _copy_runs(target)
    for run_id, theirs in target.execute(merge_queries.KNOWN_RUNS).fetchall():
        cut = _seen(target, run_id, theirs)
        target.execute(merge_queries.SET_CUT, (cut, theirs))
    last = target.execute(queries.LAST_BATCH).fetchone()
    oldest = target.execute(merge_queries.OLDEST_NEW).fetchone()[0]
    trials = 0
    if oldest is not None:
        shift = {"shift": (last["last_id"] if last else 0) + 1 - oldest}
        trials = target.execute(merge_queries.COPY_TRIALS, shift).rowcount
        target.execute(merge_queries.COPY_BATCHES, shift)
    for name in merge_queries.TEMPORARY:
        target.execute(f"DROP TABLE temp.{name}")
    return MergeSummary(runs=runs, trials=trials)


def _columns(target: sqlite3.Connection, table: str) -> list[str]:
    return [row["name"] for row in target.execute(f"PRAGMA main.table_info({table})")]


def _copy_runs(target: sqlite3.Connection) -> int:
    for statement in merge_queries.START_RUNS:
        target.execute(statement)
    for row in target.execute(merge_queries.ENDINGS).fetchall():
        target.execute(queries.UPDATE_MERGED_RUN, dict(row))
    added = target.execute(merge_queries.ADD_RUNS).rowcount
    target.execute(merge_queries.MAP_RUNS)
    return added


def _seen(target: sqlite3.Connection, run_id: int, theirs: int) -> int:
    """The newest of their trials of a run that this database has already been given; 0 when none.

    Counted by the ranges of batches, in which trials keep their place even when ``gc`` takes them.
    """
    left = target.execute(merge_queries.COUNT_PLACES, (run_id,)).fetchone()[0]
    newest = 0
    for first, last in target.execute(merge_queries.THEIR_RANGES, (theirs,)):
        if left <= 0:
            break
        newest = min(last, first + left - 1)
        left -= last - first + 1
    return newest
