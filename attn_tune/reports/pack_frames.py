"""DataFrames of packs, in the columns of reports: what a pack holds, and how two differ."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from attn_tune.packs.reader import Pack
from attn_tune.reports import tables

PPM = 1_000_000
# Points of one reason that a table names; --json has all.
_SHOWN = 3


def pack_rows(pack: Pack, names: Mapping[str, str]) -> pd.DataFrame:
    """One row a row of ``pack``; ``names`` are grid points by signature text."""
    return pd.DataFrame(
        [
            {
                "point": names.get(row.signature, row.signature),
                "direction": row.direction,
                "device": str(pack.devices[row.device]),
                "kernel": row.kernel,
                "config": row.config,
                "median_ns": row.median_ns,
                "heuristic_ns": row.heuristic_ns,
                "speedup": None if row.gain_ppm is None else 1 + row.gain_ppm / PPM,
                "regret_bound": None if row.regret_ppm is None else row.regret_ppm / PPM,
                "worst_error": None if row.error_ppm is None else row.error_ppm / PPM,
                "state": row.state,
                "samples": row.samples,
                "rank": row.rank,
            }
            for row in pack.rows
        ]
    )


def differences(rows: Iterable[Mapping[str, Any]], names: Mapping[str, str]) -> pd.DataFrame:
    """One row a difference of two packs, of their fields as plain data; ``names`` as for ``pack_rows``.

    Where both have the row, ``row`` has only the words of rank, config, state and doubts that differ.
    """
    return pd.DataFrame(
        [
            {
                "change": str(row["change"]),
                "point": names.get(row["signature"], row["signature"]),
                "direction": row["direction"],
                "device": row["device"],
                "kernel": row["kernel"],
                "row": _differing(row["before"], row["after"]),
                "before_ns": row["before_ns"],
                "after_ns": row["after_ns"],
                "ratio": row["ratio"],
            }
            for row in rows
        ]
    )


def _differing(before: str, after: str) -> str:
    """The text of the one that there is, or the words that the other lacks: ``block_q=64 -> block_q=128``."""
    if not (before and after):
        return before or after
    old, new = before.split(), after.split()
    parts = [" ".join(word for word in mine if word not in other) for mine, other in ((old, new), (new, old))]
    return " -> ".join(part or tables.MISSING for part in parts) if any(parts) else ""


def uncovered(rows: Iterable[Mapping[str, Any]], names: Mapping[str, str]) -> pd.DataFrame:
    """One row a row of a pack that does not answer, the points of one kernel and reason together."""
    found: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        key = tuple(str(row[name]) for name in ("reach", "kernel", "direction", "device", "reason"))
        found.setdefault(key, []).append(names.get(row["signature"], row["signature"]))
    return pd.DataFrame(
        [
            {
                "reach": reach,
                "kernel": kernel,
                "direction": direction,
                "device": device,
                "rows": len(points),
                "points": ", ".join(points[:_SHOWN]) + (", ..." if len(points) > _SHOWN else ""),
                "reason": reason,
            }
            for (reach, kernel, direction, device, reason), points in found.items()
        ]
    )
