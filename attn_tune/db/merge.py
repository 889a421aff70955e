"""Takes the runs of another lab database into this one: sweeps of several hosts come together this way."""

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from attn_tune.db import queries
from attn_tune.db.catalog import Catalog
from attn_tune.db.connection import connect, storage_errors
from attn_tune.db.database import Database
from attn_tune.db.trials import add_trial, read_trials


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeSummary:
    """How many runs and trials were new."""

    runs: int
    trials: int


def merge_database(database: Database, path: str | os.PathLike[str]) -> MergeSummary:
    """Copies the facts of the lab database at ``path``: all that is new or nothing. The source is only read.

    Runs are known by an id of their own and their trials only ever grow, so merging again adds what came since.
    Decisions are not copied: rebuild them.

    Raises:
      NoDataError, IntegrityError, StorageError: as ``Database.open``.
    """
    path = Path(path)
    source = connect(path, create=False, read_only=True)
    try:
        with storage_errors(path):
            # One snapshot of the source, however long the copy takes.
            source.execute("BEGIN")
            with database.transaction() as target:
                return _copy(source, target)
    finally:
        source.close()


def _copy(source: sqlite3.Connection, target: sqlite3.Connection) -> MergeSummary:
    # Fresh catalogs: the target's own remembers ids only of transactions that went through.
    theirs, ours = Catalog(source), Catalog(target)
    runs = trials = 0
    for row in source.execute(queries.RUNS).fetchall():
        known = target.execute(queries.FIND_RUN, (row["uid"],)).fetchone()
        run_id = known["id"] if known else _add_run(target, ours, theirs, row)
        runs += known is None
        if known:
            target.execute(queries.UPDATE_MERGED_RUN, _ending(row) | {"run": run_id})
        have = target.execute(queries.COUNT_TRIALS, (run_id,)).fetchone()[0]
        for position, (_, _, trial) in enumerate(read_trials(source, theirs, {"run": row["id"]})):
            if position >= have:
                add_trial(target, ours, run_id, trial)
                trials += 1
    return MergeSummary(runs=runs, trials=trials)


def _add_run(target: sqlite3.Connection, ours: Catalog, theirs: Catalog, row: sqlite3.Row) -> int:
    device = theirs.device(row["device_id"], row["evidence_id"])
    values = {
        "uid": row["uid"],
        "device_id": ours.device_id(device),
        "evidence_id": ours.evidence_id(device),
        "environment_id": ours.environment_id(theirs.environment(row["environment_id"])),
        "argv": row["argv"],
        "host": row["host"],
        "pid": row["pid"],
        "now": row["started_us"],
    }
    run_id = target.execute(queries.ADD_RUN, values).lastrowid
    assert run_id is not None
    target.execute(queries.UPDATE_MERGED_RUN, _ending(row) | {"run": run_id})
    return run_id


def _ending(row: sqlite3.Row) -> dict[str, str | int | None]:
    """A run that goes on elsewhere is not running here; the next merge brings its end."""
    running = row["status"] == "running"
    return {
        "status": "interrupted" if running else row["status"],
        "ended_us": row["heartbeat_us"] if running else row["ended_us"],
        "heartbeat_us": row["heartbeat_us"],
    }
