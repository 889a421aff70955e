"""Names that tell the devices of a page apart, and times that can be drawn."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pandas as pd

from attn_tune.schema import Decision, IntegrityError, Status

# Milliseconds that no phase of a trial takes: thirty years.
_MOST_MS = 1e12
_PHASES = ("compile_ms", "prove_ms", "run_ms")


class Names:
    """The names of devices, with a part of their digests where several have one name.

    Two boards of one model with other power limits are two devices.
    """

    def __init__(self, tables: Iterable[pd.DataFrame], decisions: Iterable[Decision]):
        digests: dict[str, set[str]] = defaultdict(set)
        for table in tables:
            for name, digest in zip(table["device"], table["device_digest"], strict=True):
                digests[str(name)].add(str(digest))
        for one in decisions:
            digests[str(one.device)].add(one.device.digest)
        self._names = {
            digest: f"{name} ({digest.rpartition(':')[2][:6]})"
            for name, found in digests.items()
            if len(found) > 1
            for digest in found
        }

    def frame(self, table: pd.DataFrame) -> pd.DataFrame:
        """The table with these names in its column ``device``."""
        if not self._names or table.empty:
            return table
        pairs = zip(table["device"], table["device_digest"], strict=True)
        return table.assign(device=[self._names.get(digest, name) for name, digest in pairs])

    def decision(self, one: Decision) -> Decision:
        """The decision, of a device with this name."""
        name = self._names.get(one.device.digest)
        return one if name is None else dataclasses.replace(one, device=dataclasses.replace(one.device, variant=name))

    def race(self, race: Any, one: Decision) -> Any:
        """The race of a decision, likewise."""
        name = self._names.get(one.device.digest)
        return race if name is None else dataclasses.replace(race, device=name)


def check_times(trials: pd.DataFrame, where: str) -> None:
    """Refuse times that no trial has, which a database changed by hand may hold.

    Raises:
      IntegrityError: a median is no positive number, or a phase no number of milliseconds; the message names the trial.
    """
    right = trials.loc[trials["status"] == Status.OK]
    for name, rows, low, high in (
        ("median_us", right, 1e-4, 1000 * _MOST_MS),
        *((name, trials, 0.0, _MOST_MS) for name in _PHASES),
    ):
        for trial, value in zip(rows["trial"], rows[name], strict=True):
            if not pd.isna(value) and not (math.isfinite(value) and low <= value <= high):
                raise IntegrityError(f"{where} is damaged: trial {trial} has {name} {value:g}")
