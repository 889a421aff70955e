"""Searches as they were recorded: the configs of one kernel on one problem, in the order tried, with their times."""

import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from attn_tune.schema import Stage, Status

_KEYS = ["signature", "device", "kernel", "direction", "part"]
_COLUMNS = [
    *_KEYS, "environment", "config", "config_digest", "status", "is_heuristic", "median_us", "started", "ended",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Search:
    """One part of one kernel on one problem and device, in the newest environment that searched it.

    Attributes:
      signature: the text of the problem.
      device: the name of the device.
      kernel: ``"op/name"``.
      direction: the direction.
      part: the launch that alone was searched, empty for the whole direction.
      knobs: the names of the knobs that take several values, sorted.
      values: of each of ``knobs``, its values in order.
      configs: the values of ``knobs`` of each config, in the order tried; each config once, its newest trial.
      times: by config, the median in nanoseconds; infinite where it failed.
      statuses: by config, the outcome.
      seconds: by config, the time from the begin of the search to the end of its trial; not a number if unknown.
      default: the place of the untuned config; None where it was not tried.
    """

    signature: str
    device: str
    kernel: str
    direction: str
    part: str
    knobs: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    configs: tuple[tuple[Any, ...], ...]
    times: tuple[float, ...]
    statuses: tuple[Status, ...]
    seconds: tuple[float, ...]
    default: int | None

    @property
    def key(self) -> str:
        """The words that name the search."""
        return " ".join((self.signature, self.device, self.kernel, self.direction, self.part))

    @functools.cached_property
    def best(self) -> float:
        """The fastest time, nanoseconds; infinite where all failed."""
        return min(self.times)

    @functools.cached_property
    def losses(self) -> tuple[tuple[float, ...], ...]:
        """Of each of ``knobs``, for each of its values: by what share the best config with it is slower than the best.

        The other knobs are chosen again for each value, from what was tried; infinite where everything with it failed.
        """
        found = [dict.fromkeys(values, math.inf) for values in self.values]
        for config, time in zip(self.configs, self.times, strict=True):
            for best, value in zip(found, config, strict=True):
                if time < best[value]:
                    best[value] = time
        return tuple(tuple(time / self.best - 1 for time in best.values()) for best in found)

    @functools.cached_property
    def by_worth(self) -> tuple[int, ...]:
        """The places of the knobs, the one that matters most first.

        That is the one with the largest median of ``losses``, in which a failure and more than 1 count as 1.
        """
        worth = [sorted(min(loss, 1.0) for loss in found)[len(found) // 2] for found in self.losses]
        return tuple(sorted(range(len(worth)), key=lambda knob: (-worth[knob], self.knobs[knob])))

    @property
    def kernel_words(self) -> tuple[str, ...]:
        """Kernel without its op, direction and part."""
        return (self.kernel.rpartition("/")[2], self.direction, self.part)


def searches(trials: pd.DataFrame) -> list[Search]:
    """The searches among the frame ``trials``, by problem; those of a whole direction that was searched in parts, and
    those of a single config, are left out."""
    kept = [str(s) for s in Status if s.was_tried]
    tried = trials.loc[(trials["stage"] == Stage.SEARCH) & trials["status"].isin(kept), _COLUMNS].copy()
    tried["started"], tried["ended"] = (_since_1970(tried[name]) for name in ("started", "ended"))
    groups: dict[tuple[str, ...], list[Any]] = {}
    for row in tried.itertuples(index=False):
        groups.setdefault((row.signature, row.device, row.kernel, row.direction, row.part), []).append(row)
    found = [_search(dict(zip(_KEYS, key, strict=True)), rows) for key, rows in sorted(groups.items())]
    in_parts = {(s.signature, s.device, s.kernel, s.direction) for s in found if s.part}
    return [
        s
        for s in found
        if len(s.configs) > 1 and (s.part or (s.signature, s.device, s.kernel, s.direction) not in in_parts)
    ]


def _since_1970(times: pd.Series) -> pd.Series:
    """Seconds since 1970; not a number where a time is not known."""
    return (times - pd.Timestamp(0, tz="UTC")).dt.total_seconds()


def _search(key: Mapping[str, str], rows: Sequence[Any]) -> Search:
    software = rows[-1].environment
    # The newest trial of a config counts, at the place where the config was first tried.
    first: dict[str, Any] = {}
    newest: dict[str, Any] = {}
    for row in rows:
        if row.environment == software:
            first.setdefault(row.config_digest, row)
            newest[row.config_digest] = row
    ordered = [newest[digest] for digest in first]
    flat = [_flat(row.config) for row in ordered]
    knobs, values = _knobs(flat)
    begun = min(row.started for row in first.values())
    return Search(
        **key,
        knobs=knobs,
        values=values,
        configs=tuple(tuple(config.get(knob) for knob in knobs) for config in flat),
        times=tuple(row.median_us * 1000 if math.isfinite(row.median_us) else math.inf for row in ordered),
        statuses=tuple(Status(row.status) for row in ordered),
        seconds=tuple((row.started if math.isnan(row.ended) else row.ended) - begun for row in first.values()),
        default=next((place for place, row in enumerate(ordered) if row.is_heuristic), None),
    )


@functools.lru_cache(20_000)
def _flat(text: str) -> Mapping[str, Any]:
    """The knobs of a config; those of a part are called ``part.knob``."""
    return dict(_pairs("", json.loads(text)))


def _pairs(prefix: str, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _pairs(f"{prefix}{name}.", value)
        else:
            yield prefix + name, value if not isinstance(value, list) else json.dumps(value)


def _knobs(configs: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]:
    """The knobs with several values, and these in order."""
    names = sorted({name for config in configs for name in config})
    found = {name: sorted({config.get(name) for config in configs}, key=_order) for name in names}
    varied = {name: tuple(values) for name, values in found.items() if len(values) > 1}
    return tuple(varied), tuple(varied.values())


def _order(value: Any) -> tuple[int, float, str]:
    """Absent values first, then truth values and numbers by size, then words."""
    if value is None:
        return 0, 0.0, ""
    if isinstance(value, bool | int | float):
        # An integer may be larger than any float.
        return 1, math.inf if value > 1e300 else -math.inf if value < -1e300 else float(value), str(value)
    return 2, 0.0, str(value)
