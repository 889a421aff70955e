"""Merging: copies the runs of another lab database into this one, so that sweeps of several hosts come together."""

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from attn_tune.db.database import Database
from attn_tune.db.store import health
from attn_tune.db.store.connection import open_reader, storage_errors
from attn_tune.db.store.writer import is_held
from attn_tune.schema import IntegrityError

_SOURCE = "merged"
_PROGRESS = ("cases", "cases_done", "cases_decided", "configs", "configs_done", "activity")
_RUN = ("uid", "argv", "host", "pid", "started", "heartbeat", "environment", *_PROGRESS)

_PREPARE = (
    f"INSERT OR IGNORE INTO main.signature SELECT * FROM {_SOURCE}.signature",
    f"INSERT OR IGNORE INTO main.environment SELECT * FROM {_SOURCE}.environment",
    f"""CREATE TEMP TABLE map_device AS
    SELECT theirs.id AS theirs, ours.id AS ours FROM {_SOURCE}.device AS theirs
    JOIN main.device AS ours USING (digest, evidence)""",
    # A run in progress elsewhere is not running here; the next merge brings its end.
    f"""CREATE TEMP TABLE their_run AS
    SELECT *, CASE status WHEN 'running' THEN heartbeat ELSE ended END AS known_end,
           CASE status WHEN 'running' THEN 'interrupted' ELSE status END AS known_status
    FROM {_SOURCE}.run""",
)
# A run of this database that is in progress is left alone.
_UPDATE_RUNS = f"""
UPDATE main.run SET status = t.known_status, ended = t.known_end, heartbeat = t.heartbeat,
    {", ".join(f"{name} = t.{name}" for name in _PROGRESS)}
FROM temp.their_run AS t
WHERE t.uid = run.uid AND run.heartbeat <= t.heartbeat AND NOT (run.status = 'running' AND :is_written)
"""
_ADD_RUNS = f"""
INSERT INTO main.run ({", ".join(_RUN)}, device_id, status, ended)
SELECT {", ".join(f"t.{name}" for name in _RUN)}, map_device.ours, t.known_status, t.known_end
FROM temp.their_run AS t JOIN temp.map_device ON map_device.theirs = t.device_id
WHERE t.uid NOT IN (SELECT uid FROM main.run) ORDER BY t.id
"""
# Trials keep their numbers within a run even when garbage collection takes others, so these tell which are new.
_COPY_TRIALS = f"""
INSERT INTO main.trial (run_id, device_id, {{columns}})
SELECT run.id, map_device.ours, {{theirs}}
FROM {_SOURCE}.trial AS t
JOIN temp.their_run ON their_run.id = t.run_id
JOIN main.run ON run.uid = their_run.uid
JOIN temp.map_device ON map_device.theirs = t.device_id
WHERE t.number > run.trials ORDER BY t.id
"""
_COUNT_TRIALS = """
UPDATE main.run SET trials = max(run.trials, t.trials) FROM temp.their_run AS t WHERE t.uid = run.uid
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeSummary:
    """The rows that a merge added.

    Attributes:
      runs: new runs.
      trials: new trials.
    """

    runs: int
    trials: int


def merge_database(database: Database, path: str | os.PathLike[str]) -> MergeSummary:
    """Copies the facts of the lab database at ``path``: all that is new or nothing. The source is only read.

    Runs have an id of their own and their trials only grow, so merging again adds what came since. Rows go from file to
    file inside SQLite. Decisions are not copied: rebuild them.

    Raises:
      NoDataError, IntegrityError, StorageError: as ``Database.open``.
    """
    uri = check_source(path)
    with database.attached(uri, _SOURCE), database.transaction() as target:
        try:
            return _copy(target, is_written=is_held(database.path))
        except sqlite3.IntegrityError as error:
            raise IntegrityError(f"{path} contradicts itself: {error}; nothing was merged") from error


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


def _copy(target: sqlite3.Connection, *, is_written: bool) -> MergeSummary:
    names = ", ".join(_columns(target, "device", "id"))
    target.execute(f"INSERT OR IGNORE INTO main.device ({names}) SELECT {names} FROM {_SOURCE}.device ORDER BY id")
    for statement in _PREPARE:
        target.execute(statement)
    target.execute(_UPDATE_RUNS, {"is_written": is_written})
    runs = target.execute(_ADD_RUNS).rowcount
    copied = _columns(target, "trial", "id", "run_id", "device_id")
    columns, theirs = ", ".join(copied), ", ".join(f"t.{name}" for name in copied)
    trials = target.execute(_COPY_TRIALS.format(columns=columns, theirs=theirs)).rowcount
    target.execute(_COUNT_TRIALS)
    for name in ("map_device", "their_run"):
        target.execute(f"DROP TABLE temp.{name}")
    return MergeSummary(runs=runs, trials=trials)


def _columns(target: sqlite3.Connection, table: str, *without: str) -> list[str]:
    rows = target.execute(f"PRAGMA main.table_info({table})")
    return [row["name"] for row in rows if row["name"] not in without]
