"""DataFrames of compile-only sweeps: configs that fit a device that is not present, and their predicted times."""

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from attn_tune.ops.contract import load
from attn_tune.ops.registry import ops
from attn_tune.schema import Status

_KEYS = ["device", "signature", "direction", "kernel", "part"]
_FITTING = [status for status in Status if status.is_offline]
_COMPILE_ONLY = [status for status in Status if status.needs_no_device]
# Failures of compiling other than a lack of resources.
_OTHER = [s for s in Status if s.needs_no_device and s.is_failure and not s.does_not_fit]


def fits(trials: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """One row a (device, signature, direction, kernel, part) that was compiled for and not run: counts by fate."""
    trials = _newest(trials)
    rows = []
    for key, group in trials.groupby(_KEYS, sort=False):
        row = _named(key)
        counts = {str(status): len(some) for status, some in group.groupby("status")}
        lack = group.loc[group["status"] == Status.OUT_OF_RESOURCES]
        rows.append(
            {
                "point": names.get(row["signature"], row["signature"]),
                "direction": row["direction"],
                "kernel": row["kernel"],
                "part": row["part"],
                "device": row["device"],
                "configs": len(group),
                "fit": sum(counts.get(status, 0) for status in _FITTING),
                "out of resources": len(lack),
                "not compiled": int(lack["reason"].str.startswith("not compiled").sum()),
                "other": sum(counts.get(s, 0) for s in _OTHER),
                "most short of": _shortest(lack),
            }
        )
    return pd.DataFrame(rows)


def ranking(trials: pd.DataFrame, names: Mapping[str, str], best: int = 3) -> pd.DataFrame:
    """The ``best`` predicted configs of each (device, signature, direction, kernel), whole ones, fastest first.

    Gains are over the config with default blocks and over the untuned one, where these were compiled too.
    """
    trials = _newest(trials)
    found = trials.loc[(trials["status"] == Status.PREDICTED) & (trials["part"] == "")]
    rows = []
    for key, group in found.groupby(_KEYS, sort=False):
        row = _named(key)
        group = group.sort_values(["predicted_ns", "config_digest"], kind="stable")
        default = _ns(group.loc[[_is_default(row["kernel"], text) for text in group["config"]]])
        untuned = _ns(group.loc[group["is_heuristic"]])
        for place, trial in enumerate(group.head(best).itertuples(index=False), 1):
            rows.append(
                {
                    "point": names.get(row["signature"], row["signature"]),
                    "signature": row["signature"],
                    "direction": row["direction"],
                    "device": row["device"],
                    "kernel": row["kernel"],
                    "place": place,
                    "predicted_ns": trial.predicted_ns,
                    "low_ns": trial.low_ns,
                    "high_ns": trial.high_ns,
                    "gain_over_default": default / trial.predicted_ns if default else None,
                    "gain_over_untuned": untuned / trial.predicted_ns if untuned else None,
                    "config": trial.config,
                }
            )
    return pd.DataFrame(rows)


def _is_default(kernel: str, config: str) -> bool:
    """Whether the op of ``kernel`` says that ``config``, as JSON, has the default blocks."""
    op = ops().get(kernel.partition("/")[0])
    return bool(op and op.walk) and load(op.walk).is_default(json.loads(config))  # type: ignore[union-attr]


def _named(key: Any) -> dict[str, Any]:
    """The columns that a group has in common."""
    return dict(zip(_KEYS, key, strict=True))


def _newest(trials: pd.DataFrame) -> pd.DataFrame:
    """Compile-only trials, the newest of each config."""
    found = trials.loc[trials["status"].isin(_COMPILE_ONLY) & _is_target(trials)]
    return found.drop_duplicates(["environment", *_KEYS, "config_digest"], keep="last")


def _is_target(trials: pd.DataFrame) -> pd.Series:
    """Whether a trial is of an environment in which nothing was ever run."""
    pairs = list(zip(trials["environment"], trials["status"], strict=True))
    needs_device = {s for s in Status if not s.needs_no_device and not s.is_refused}
    ran = {where for where, status in pairs if status in needs_device}
    only = {where for where, status in pairs if status in _FITTING}
    return pd.Series([where in only - ran for where, _ in pairs], index=trials.index, dtype=bool)


def _ns(group: pd.DataFrame) -> float | None:
    return None if group.empty else min(float(ns) for ns in group["predicted_ns"])


def _shortest(lack: pd.DataFrame) -> str:
    known = lack.dropna(subset=["needed"])
    if known.empty:
        return ""
    worst = known.loc[known["needed"].astype(float).idxmin()]
    return f"{worst['resource']}: {int(worst['needed'])} of {int(worst['limit'])}"
