"""Times that earlier searches measured, by case and part: the start of a new search, and the data of a replay."""

import functools
import math
import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attn_tune.db.store.references import References
from attn_tune.db.store.rows import NO_ROW, RowError, json_object
from attn_tune.db.store.schema import status_list
from attn_tune.db.store.sql import narrowing
from attn_tune.schema import Signature, Stage, Status

# Rows come oldest first, so that the newest trial of a config replaces the others.
_PAST = f"""
SELECT trial.kernel, direction, part, signature, device.digest AS device, environment, config_digest, config,
       is_heuristic, median_us, trial.id
FROM trial JOIN device ON device.id = device_id
WHERE stage = '{Stage.SEARCH}' AND status IN ({status_list(s for s in Status if s.was_tried)}) AND {{filters}}
ORDER BY trial.id
"""
_FILTERS = {
    "kernel": "trial.kernel = :kernel",
    "direction": "direction = :direction",
    "part": "part = :part",
    "family": "device.family = :family",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PastSearch:
    """One part of one kernel on one signature, device and environment, as its searches measured it.

    Attributes:
      kernel: ``"op/name"``.
      direction: the direction.
      part: the launch that was searched, ``""`` for the whole direction.
      signature: the problem.
      device: the digest of the device.
      environment: the digest of the environment.
      configs: configs by digest, the untuned one first, then in the order tried; refused ones are left out.
      times_ns: by the same keys, the median of the newest trial; ``inf`` for a config that failed.
    """

    kernel: str
    direction: str
    part: str
    signature: Signature
    device: str
    environment: str
    configs: Mapping[str, Mapping[str, Any]]
    times_ns: Mapping[str, float]


def read_past_searches(
    connection: sqlite3.Connection, references: References, filters: Mapping[str, str | None]
) -> list[PastSearch]:
    """The searches that fit ``filters`` (kernel, direction, part, family), oldest first."""
    groups: dict[tuple, dict[str, sqlite3.Row]] = defaultdict(dict)
    condition, values = narrowing("past searches", _FILTERS, filters)
    for row in connection.execute(_PAST.format(filters=condition), values):
        groups[tuple(row)[:6]][row["config_digest"]] = row
    parse = functools.cache(json_object)
    found = []
    for (kernel, direction, part, signature, device, environment), rows in groups.items():
        ordered = sorted(rows.values(), key=lambda row: not row["is_heuristic"])
        configs = {}
        for row in ordered:
            try:
                configs[row["config_digest"]] = parse(row["config"])
            except NO_ROW as error:
                raise RowError("trial", row["id"], error) from error
        times = {row["config_digest"]: _nanoseconds(row["median_us"]) for row in ordered}
        found.append(
            PastSearch(
                kernel=kernel,
                direction=direction,
                part=part,
                signature=references.signature(signature),
                device=device,
                environment=environment,
                configs=configs,
                times_ns=times,
            )
        )
    return found


def _nanoseconds(us: float | None) -> float:
    return math.inf if us is None else round(us * 1000, 1)
