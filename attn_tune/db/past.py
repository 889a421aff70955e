"""What was measured of each config, without the trials around it: what a search starts from, and a replay runs on."""

import functools
import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attn_tune.db import queries
from attn_tune.db.catalog import Catalog
from attn_tune.schema import Signature


@dataclass(frozen=True, kw_only=True, slots=True)
class PastSearch:
    """One part of one kernel on one signature, device and environment, as its searches measured it.

    ``configs`` and ``times_ns`` are by config digest, the untuned config first, then in the order tried. A config that
    failed has the time ``inf``; one that was refused before compiling is left out. The newest trial of a config speaks.
    """

    kernel: str
    direction: str
    part: str
    signature: Signature
    device: str
    environment: str
    configs: Mapping[str, Mapping[str, Any]]
    times_ns: Mapping[str, float]


def read_past(
    connection: sqlite3.Connection, catalog: Catalog, filters: Mapping[str, Any]
) -> list[PastSearch]:
    """The searches that fit ``filters`` (of ``queries.PAST_FILTERS``), oldest first."""
    narrowing = " AND ".join(queries.PAST_FILTERS[name] for name in filters) or "TRUE"
    groups: dict[tuple, dict[int, sqlite3.Row]] = defaultdict(dict)
    for row in connection.execute(queries.PAST.format(filters=narrowing), dict(filters)):
        key = (*row[:4], row["signature_id"], row["device"], row["environment"])
        groups[key][row["config_id"]] = row
    body = functools.cache(json.loads)
    found = []
    for (op, name, direction, part, signature_id, device, environment), rows in groups.items():
        ordered = sorted(rows.values(), key=lambda row: not row["is_heuristic"])
        found.append(
            PastSearch(
                kernel=f"{op}/{name}",
                direction=direction,
                part=part,
                signature=catalog.signature(signature_id),
                device=device,
                environment=environment,
                configs={row["config"]: body(row["body"]) for row in ordered},
                times_ns={
                    row["config"]: math.inf if row["median_ns"] is None else float(row["median_ns"])
                    for row in ordered
                },
            )
        )
    return found
