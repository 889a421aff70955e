"""DataFrames of packs, in the columns of reports: what a pack holds, and how two differ."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from attn_tune.packs.reader import Pack

PPM = 1_000_000


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
    """One row a difference of two packs, of their fields as plain data; ``names`` as for ``pack_rows``."""
    frame = pd.DataFrame(rows).rename(columns={"signature": "point"})
    return frame.assign(point=[names.get(text, text) for text in frame["point"]])
