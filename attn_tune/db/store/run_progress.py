"""Progress of a run: what it planned, what is done, and what each of its devices does now."""

import dataclasses
import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from attn_tune.db.store.times import now_us, time_text

_STORE = """
UPDATE run SET heartbeat = :now, cases = :cases, cases_done = :cases_done, cases_decided = :cases_decided,
    configs = :configs, configs_done = :configs_done, activity = :activity
WHERE id = :run AND status = 'running'
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """A device of a sweep and what it does.

    Attributes:
      device: its name among the devices of the sweep.
      point: the name of the problem; empty before the first.
      direction: the direction.
      kernel: the kernel that is searched, without its op; empty in finals.
      phase: ``"starting"``, ``"references"``, ``"compiling"``, ``"proving"``, ``"racing"``, ``"finals"``, or
        ``"waiting"`` after a case.
      since_us: Unix time at which the phase began, in microseconds.
      best_kernel: the kernel of the fastest right config so far; empty without one.
      best_us: the time of that config in microseconds.
      untuned_us: the time of that kernel's untuned config in microseconds; None if it did not run.
      curve_us: the best time after each of some trials, in microseconds, oldest first.
    """

    device: str
    point: str = ""
    direction: str = ""
    kernel: str = ""
    phase: str = ""
    since_us: int = 0
    best_kernel: str = ""
    best_us: float | None = None
    untuned_us: float | None = None
    curve_us: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunProgress:
    """Plan and progress of a run. A case is one problem in one direction.

    Attributes:
      cases: the cases that it has something to try in.
      cases_done: those that ended.
      cases_decided: those that ended with a winner.
      configs: the configs that it tried or is still to try; those that turned out not to be needed are taken off.
      configs_done: those that it tried.
      activity: what its devices do, one entry a device.
    """

    cases: int = 0
    cases_done: int = 0
    cases_decided: int = 0
    configs: int = 0
    configs_done: int = 0
    activity: tuple[Activity, ...] = ()


def store_progress(connection: sqlite3.Connection, run_id: int, progress: RunProgress) -> bool:
    """Stores the progress of a running run as its sign of life, inside the caller's transaction; False if it ended."""
    values: dict[str, Any] = {
        name: getattr(progress, name) for name in ("cases", "cases_done", "cases_decided", "configs", "configs_done")
    }
    values["activity"] = json.dumps([dataclasses.asdict(one) for one in progress.activity])
    values |= {"run": run_id, "now": time_text(now_us())}
    return connection.execute(_STORE, values).rowcount == 1


def read_progress(row: sqlite3.Row) -> RunProgress | None:
    """The progress in a row of the table ``run``; None for a run that stored none.

    Raises:
      ValueError, TypeError: what is stored is no progress.
    """
    if row["configs"] is None:
        return None
    activity = []
    for entry in json.loads(row["activity"] or "[]"):
        entry["curve_us"] = tuple(map(float, entry["curve_us"]))
        activity.append(Activity(**entry))
    return RunProgress(
        cases=int(row["cases"]),
        cases_done=int(row["cases_done"]),
        cases_decided=int(row["cases_decided"]),
        configs=int(row["configs"]),
        configs_done=int(row["configs_done"]),
        activity=tuple(activity),
    )
