"""Traces of searches: how soon the best config was found, beside the same configs in random order."""

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attn_tune.reports.page import draw
from attn_tune.reports.page.data import PageData, fitting
from attn_tune.reports.page.markup import Markup, element, joined
from attn_tune.reports.page.scales import Scale
from attn_tune.reports.page.searches import Search
from attn_tune.schema.words import counted, duration

TITLE = "How soon did the search find its best?"
BUDGET = 34_000
ORDERS = 100
POINTS = 48
HEIGHT = 110
GUTTER = 40
# What is slower than this, in times of the best, is drawn at the top.
_HIGHEST = 4.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """Best times so far over the best of all, after each config.

    Attributes:
      found: in the order of the search; infinite until something was right.
      low, middle, high: a tenth, the median and nine tenths of random orders of the same configs.
    """

    found: np.ndarray
    low: np.ndarray
    middle: np.ndarray
    high: np.ndarray


def trace(search: Search) -> Trace:
    """The trace of a search whose best time is known. Random orders begin with the untuned config, as searches do.

    The orders depend on the words that name the search and on nothing else.
    """
    times = np.array(search.times) / search.best
    first = search.default
    rest = np.array([place for place in range(len(times)) if place != first], dtype=np.int64)
    seed = int.from_bytes(hashlib.blake2b(search.key.encode(), digest_size=16).digest(), "little")
    # Raw words: their stream is the same in every version of numpy.
    drawn = np.random.PCG64(seed).random_raw((ORDERS, len(rest))).argsort(axis=1, kind="stable")
    orders = times[rest[drawn]]
    if first is not None:
        orders = np.concatenate([np.full((ORDERS, 1), times[first]), orders], axis=1)
    best = np.sort(np.minimum.accumulate(orders, axis=1), axis=0)
    low, middle, high = best[ORDERS // 10], best[ORDERS // 2], best[ORDERS - 1 - ORDERS // 10]
    return Trace(found=np.minimum.accumulate(times), low=low, middle=middle, high=high)


def configs_to(best_so_far: np.ndarray, ratio: float) -> int | None:
    """The number of configs until one was within ``ratio`` of the best; None if none was."""
    reached = np.flatnonzero(best_so_far <= ratio)
    return int(reached[0]) + 1 if len(reached) else None


def part(data: PageData, searches: Sequence[Search]) -> list[Markup]:
    """Two pictures a search: over the number of configs, with random orders, and over seconds."""
    kept = [s for s in searches if math.isfinite(s.best) and len(s.configs) > 2]
    if not kept:
        return [element("p", "No search tried three configs and found a right one.", class_="none")]
    # The searches that had to look come first; where the first config was the best there is little to see.
    ordered = sorted(kept, key=lambda s: (-min(s.times[0] / s.best, _HIGHEST), -len(s.configs), s.key))
    cards, rest = fitting(ordered, lambda s: _card(data, s), data.budget(BUDGET))
    data.left_out["traces of searches"] = rest
    return [_legend(), element("div", *cards, class_="cards")]


def _card(data: PageData, search: Search) -> Markup:
    found = trace(search)
    count = len(search.configs)
    highest = max(1.05, min(_HIGHEST, _worst(found)))
    y = Scale(1.0, highest, True)
    soon, chance = configs_to(found.found, 1.02), configs_to(found.middle, 1.02)
    usual = f", random order {chance}" if chance else ""
    words = f"within 2 % of {duration(search.best)} after {soon} of {counted(count, 'config')}{usual}"
    return element(
        "div",
        element("h3", data.label(search.signature, *search.kernel_words, device=search.device)),
        element("p", words, class_="sub"),
        element("div", _over_configs(found, y), _over_seconds(search, found, y), class_="pair"),
        class_="card",
        **data.marks(signature=search.signature, device=search.device),
    )


def _worst(found: Trace) -> float:
    """The slowest finite time that a curve begins with."""
    starts = [float(c[np.isfinite(c)][0]) for c in (found.found, found.high) if np.isfinite(c).any()]
    return 1.02 * max(starts)


def _over_configs(found: Trace, y: Scale) -> Markup:
    count = len(found.found)
    x = Scale(1.0, float(count))
    low, high = (_steps(curve, x, y) for curve in (found.low, found.high))
    curves = [
        draw.curve([*low, *reversed(high)], "band", closed=True),
        draw.curve(_steps(found.middle, x, y), "random"),
        draw.curve(_steps(found.found, x, y), "found"),
    ]
    return _panel(curves, y, "1", f"{count} configs", "best so far, by configs tried")


def _over_seconds(search: Search, found: Trace, y: Scale) -> Markup:
    seconds = np.maximum.accumulate(np.array(search.seconds))
    if not np.isfinite(seconds).all() or seconds[-1] <= 0:
        return element("p", "Times of day are not stored.", class_="none")
    x = Scale(0.0, float(seconds[-1]))
    kept = _kept(found.found)
    points = [(x.at(float(seconds[i])), y.at(_capped(found.found[i], y))) for i in kept]
    return _panel([draw.curve(_stairs(points), "found")], y, "0 s", duration(seconds[-1] * 1e9), "best so far, by time")


def _panel(curves: list[Markup], y: Scale, first: str, last: str, label: str) -> Markup:
    lines, gutter = draw.ladder(y, HEIGHT, lambda tick: f"{tick:g}×", width=GUTTER, most=4)
    inner = element("svg", *curves, width="100%", height=HEIGHT, overflow="visible")
    ends = [draw.words(0, HEIGHT + 14, first, "start", "tick"), draw.words(1, HEIGHT + 14, last, "end", "tick")]
    picture = draw.svg(*lines, inner, *ends, height=HEIGHT + 18, label=label)
    return element("div", gutter, picture, class_="plot", style=f"grid-template-columns:{GUTTER}px 1fr")


def _capped(value: float, y: Scale) -> float:
    return min(float(value), y.high)


def _kept(curve: np.ndarray) -> list[int]:
    """The places where a curve falls, and its ends; at most about ``POINTS`` of them."""
    falls = np.flatnonzero(np.diff(curve, prepend=np.inf) < 0).tolist()
    if len(falls) > POINTS:
        step = len(falls) / POINTS
        falls = [falls[int(i * step)] for i in range(POINTS)]
    return sorted({0, *falls, len(curve) - 1})


def _steps(curve: np.ndarray, x: Scale, y: Scale) -> list[tuple[float, float]]:
    return _stairs([(x.at(i + 1.0), y.at(_capped(curve[i], y))) for i in _kept(curve)])


def _stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A best so far stays until a better one is found: a corner before each point."""
    made = [points[0]]
    for before, after in itertools.pairwise(points):
        if before[1] != after[1]:
            made.append((after[0], before[1]))
        made.append(after)
    return made


def _legend() -> Markup:
    entries = [
        (draw.swatch(element("path", d="M1 7h20", class_="found")), "this search"),
        (
            draw.swatch(element("path", d="M1 7h20", class_="random")),
            f"the same configs in random order: median of {ORDERS} orders",
        ),
        (draw.swatch(element("rect", y=2, width=22, height=10, class_="band")), "eight of ten of these orders"),
    ]
    return joined([draw.legend(entries)])
