"""The conditions under which the times of a page were taken: versions of the software, the timer, the caches."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd

from attn_tune.reports.page.markup import Markup, element, table

# By column of the frame ``software``: the word for people.
_VERSIONS = {
    "jax": "JAX",
    "jaxlib": "jaxlib",
    "triton": "Triton",
    "cudnn": "cuDNN",
    "compiler": "compiler",
    "driver": "driver",
    "attn_tune": "attn-tune",
}
_TIMERS = {"cupti": "device time (CUPTI)", "xplane": "device time (XPlane)", "host": "the host's clock"}
_MOST = 20


def in_words(software: pd.DataFrame) -> str:
    """One sentence with every version that occurs, and the caches before each sample."""
    found = []
    for name in ("jax", "triton", "cudnn", "driver"):
        versions = sorted({v for v in software[name] if v and not pd.isna(v)})
        found += [f"{_VERSIONS[name]} {' and '.join(versions)}"] if versions else []
    return ", ".join([*found, *sorted(_caches(software))])


def part(software: pd.DataFrame) -> list[Markup]:
    """A table with one row for each set of versions, timer and caches, and how many trials were measured with it."""
    head = element("h3", "Software, timer and caches")
    if software.empty:
        return [head, element("p", "Nothing was measured.", class_="none")]
    counts: Counter[tuple[Any, ...]] = Counter()
    for row in software.to_dict("records"):
        versions = (row[name] if isinstance(row[name], str) and row[name] else "-" for name in _VERSIONS)
        timer = _TIMERS.get(row["timer"], str(row["timer"]))
        counts[row["device"], *versions, timer, _cache(is_cold=row["is_cold"])] += row["trials"]
    rows = [(*key, number) for key, number in sorted(counts.items())][:_MOST]
    more = element("p", f"and {len(counts) - _MOST} more", class_="sub") if len(counts) > _MOST else None
    made = table(["device", *_VERSIONS.values(), "timer", "before a sample", "trials"], rows, numeric=[10])
    return [head, made, *([more] if more else [])]


def _cache(*, is_cold: bool) -> str:
    return "cold cache" if is_cold else "warm cache"


def _caches(software: pd.DataFrame) -> Iterator[str]:
    for is_cold in set(software["is_cold"]):
        yield f"{_cache(is_cold=is_cold)} before each sample"
