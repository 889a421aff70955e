"""Runs: one sweep from its begin to its end, and how it is doing."""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field

from attn_tune.db import queries
from attn_tune.db.catalog import Catalog
from attn_tune.db.writer import holder
from attn_tune.schema import Device, Environment, Status

# A shorter run is mostly start and end.
_LEAST_CONFIGS = 8
ENDINGS = ("finished", "interrupted", "failed")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStatus:
    """The run that is going on, else the last one.

    ``state`` is ``"running"``, ``"finished"``, ``"interrupted"``, ``"failed"``, or ``"none"`` before the first run. A
    run whose process died without a word is ``"interrupted"``. Times are Unix time in microseconds. ``counts`` are
    trials by status.
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

    @property
    def running(self) -> bool:
        """True while the process that writes lives."""
        return self.state == "running"

    @property
    def trials(self) -> int:
        """Trials of every status."""
        return sum(self.counts.values())


def read_status(connection: sqlite3.Connection, catalog: Catalog) -> RunStatus:
    """How the current run, or the last one, is doing."""
    import json

    row = connection.execute(queries.LAST_RUN).fetchone()
    if row is None:
        return RunStatus()
    writer = holder(connection)
    alive = writer is not None and (writer.host, writer.pid) == (row["host"], row["pid"])
    counts = connection.execute(queries.COUNT_STATUSES, (row["id"],))
    return RunStatus(
        state="interrupted" if row["status"] == "running" and not alive else row["status"],
        run_id=row["id"],
        host=row["host"],
        pid=row["pid"],
        argv=tuple(json.loads(row["argv"])),
        device=catalog.device(row["device_id"], row["evidence_id"]),
        environment=catalog.environment(row["environment_id"]),
        started_us=row["started_us"],
        heartbeat_us=row["heartbeat_us"],
        ended_us=row["ended_us"],
        counts={Status(r["status"]): r["count"] for r in counts},
    )


def read_pace(connection: sqlite3.Connection, device: Device) -> float | None:
    """See ``Database.seconds_per_config``."""
    where = {"device": device.digest, "least": _LEAST_CONFIGS}
    row = connection.execute(queries.PACE, where).fetchone()
    return None if row is None else float(row["seconds"])
