"""Runs: one sweep from its begin to its end, and its progress."""

import json
import os
import secrets
import socket
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attn_tune.db.store.references import References
from attn_tune.db.store.rows import NO_ROW, RowError, json_texts
from attn_tune.db.store.run_progress import RunProgress, read_progress
from attn_tune.db.store.schema import status_list
from attn_tune.db.store.sql import insert
from attn_tune.db.store.times import now_us, time_text, time_us
from attn_tune.db.store.writer import is_held
from attn_tune.schema import Device, Environment, Stage, Status

# Fewer configs are mostly start and end: runs before them count too.
_ENOUGH_CONFIGS = 8
ENDINGS = ("finished", "interrupted", "failed")

_END = """
UPDATE run SET status = :status, ended = :now, heartbeat = :now WHERE id = :run AND status = 'running'
"""
_ABANDON = "UPDATE run SET status = 'interrupted', ended = heartbeat WHERE status = 'running'"
_LAST = "SELECT * FROM run ORDER BY status = 'running' DESC, id DESC LIMIT 1"
_ONE = "SELECT * FROM run WHERE id = ?"
_STATUSES = "SELECT status, count(*), min(id) FROM trial WHERE run_id = ? GROUP BY status ORDER BY status"
# The whole time of a run counts: starts, references, finals.
_PACE = f"""
SELECT (julianday(run.ended) - julianday(run.started)) * 86400 AS seconds, count(*) AS configs, run.id
FROM run JOIN trial ON trial.run_id = run.id
WHERE run.device_id IN (SELECT id FROM device WHERE digest = :device) AND run.ended > run.started
  AND stage = '{Stage.SEARCH}' AND trial.status NOT IN ({status_list(s for s in Status if s.is_refused)})
GROUP BY run.id ORDER BY run.id DESC
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStatus:
    """The running run, else the last one.

    Attributes:
      state: ``"running"``, ``"finished"``, ``"interrupted"``, ``"failed"``, or ``"none"`` before the first run. A run
        whose process died is ``"interrupted"``.
      run_id: the run, None before the first.
      host: the name of its host.
      pid: the number of its process.
      argv: its command line.
      device: the device that it was begun on.
      environment: the software that it was begun with.
      started_us: Unix time of its begin in microseconds.
      heartbeat_us: Unix time of its last sign of life in microseconds.
      ended_us: Unix time of its end in microseconds, None while it runs.
      counts: its trials by status.
      progress: its plan, and what is done of it; None if it stored none.
    """

    state: str = "none"
    run_id: int | None = None
    host: str = ""
    pid: int = 0
    argv: tuple[str, ...] = ()
    device: Device | None = None
    environment: Environment | None = None
    started_us: int = 0
    heartbeat_us: int = 0
    ended_us: int | None = None
    counts: Mapping[Status, int] = field(default_factory=dict)
    progress: RunProgress | None = None

    @property
    def running(self) -> bool:
        """True while the process that writes lives."""
        return self.state == "running"

    @property
    def trials(self) -> int:
        """Trials of every status."""
        return sum(self.counts.values())


def add_run(
    connection: sqlite3.Connection,
    references: References,
    device: Device,
    environment: Environment,
    argv: Sequence[str],
    started_us: int | None = None,
) -> int:
    """Adds a run of this process inside the caller's transaction, and returns its id; it starts now by default."""
    now = time_text(now_us())
    values = {
        "uid": secrets.token_hex(16),
        "status": "running",
        "device_id": references.add_device(device),
        "environment": references.add_environment(environment),
        "argv": json.dumps(list(argv)),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": now if started_us is None else time_text(started_us),
        "heartbeat": now,
    }
    return insert(connection, "run", values)


def end_run(connection: sqlite3.Connection, run_id: int, status: str) -> None:
    """Ends a run inside the caller's transaction."""
    connection.execute(_END, {"run": run_id, "status": status, "now": time_text(now_us())})


def abandon_runs(connection: sqlite3.Connection) -> None:
    """Marks the runs of a writer that is gone as interrupted."""
    connection.execute(_ABANDON)


def read_status(connection: sqlite3.Connection, references: References, path: Path) -> RunStatus:
    """The progress of the current run, or of the last one, of the database at ``path``."""
    row = connection.execute(_LAST).fetchone()
    if row is None:
        return RunStatus()
    counts: dict[Status, int] = {}
    for name, count, first in connection.execute(_STATUSES, (row["id"],)):
        try:
            counts[Status(name)] = count
        except ValueError as error:
            raise RowError("trial", first, error) from error
    is_dead = row["status"] == "running" and not is_held(path)
    if is_dead:
        # It may have ended between the two looks.
        row = connection.execute(_ONE, (row["id"],)).fetchone()
        is_dead = row["status"] == "running"
    try:
        return RunStatus(
            state="interrupted" if is_dead else row["status"],
            run_id=row["id"],
            host=row["host"],
            pid=row["pid"],
            argv=json_texts(row["argv"]),
            device=references.device(row["device_id"]),
            environment=references.environment(row["environment"]),
            started_us=time_us(row["started"]),
            heartbeat_us=time_us(row["heartbeat"]),
            ended_us=None if row["ended"] is None else time_us(row["ended"]),
            counts=counts,
            progress=read_progress(row),
        )
    except NO_ROW as error:
        raise RowError("run", row["id"], error) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """The speed of the last sweeps on a device.

    Attributes:
      seconds: their wall time for each config.
      configs: the number of configs that this was seen with.
    """

    seconds: float
    configs: int


def read_pace(connection: sqlite3.Connection, device: Device) -> Pace | None:
    """The pace of the last runs on an equal device, as many as have some configs together; None without any."""
    seconds, configs = 0.0, 0
    for row in connection.execute(_PACE, {"device": device.digest}):
        if row["seconds"] is None:
            raise RowError("run", row["id"], "its times are none")
        seconds, configs = seconds + row["seconds"], configs + row["configs"]
        if configs >= _ENOUGH_CONFIGS:
            break
    return Pace(seconds=seconds / configs, configs=configs) if configs else None
