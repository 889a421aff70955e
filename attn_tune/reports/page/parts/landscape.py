"""Landscapes: the best time over all other knobs, for each pair of values of two knobs."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from attn_tune.reports.page import draw
from attn_tune.reports.page.data import PageData, fitting
from attn_tune.reports.page.markup import Markup, element
from attn_tune.reports.page.searches import Search
from attn_tune.reports.page.statuses import FAILURES, commonest, hatch, word
from attn_tune.schema import Status
from attn_tune.schema.words import counted, duration

TITLE = "How does time depend on two knobs?"
BUDGET = 50_000
DATA_BUDGET = 50_000
CELL = 26
LABELS = 62
# Upper ends of the bins of time over the best; what is above the last one has a bin of its own.
BINS = (1.02, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
# The failures in the order of their numbers in the embedded data.
_CODES = tuple(FAILURES)


def part(data: PageData, searches: Sequence[Search], *, is_interactive: bool = False) -> list[Markup]:
    """A heat map of each search with its two knobs that matter most, and the data for any other pair."""
    kept = [s for s in searches if s.knobs]
    if not kept:
        return [element("p", "No search tried several values of a knob.", class_="none")]
    ordered = sorted(kept, key=lambda s: (-len(s.configs), s.key))
    embedded, lost = _embedded(data, ordered)
    maps, rest = fitting(enumerate(ordered), lambda one: _card(data, one[1], one[0]), data.budget(BUDGET))
    data.left_out["landscapes not drawn"] = rest
    data.left_out["searches without data for other pairs of knobs"] = lost
    explorer = element("div", id="explorer", class_="card", hidden=True)
    chart = element("div", id="vega", class_="card", hidden=True) if is_interactive else None
    return [_legend(), *([chart] if chart else []), explorer, element("div", *maps, class_="cards"), embedded]


def grid(search: Search, x: int, y: int | None) -> dict[tuple[int, int], tuple[float, list[Status]]]:
    """By places of the values of knobs ``x`` and ``y``: the best time in nanoseconds and the outcomes of all configs.

    The time is infinite where all failed; pairs that were not tried are missing.
    """
    places = [{value: place for place, value in enumerate(values)} for values in search.values]
    found: dict[tuple[int, int], tuple[float, list[Status]]] = {}
    for config, time, status in zip(search.configs, search.times, search.statuses, strict=True):
        key = (places[x][config[x]], 0 if y is None else places[y][config[y]])
        best, statuses = found.get(key, (math.inf, []))
        statuses.append(status)
        found[key] = (min(best, time), statuses)
    return found


def bin_of(ratio: float) -> int:
    """The bin of a time over the best one."""
    return next((place for place, end in enumerate(BINS) if ratio <= end), len(BINS))


def _card(data: PageData, search: Search, place: int) -> Markup:
    x, *others = search.by_worth
    y = others[0] if others else None
    best = f"best {duration(search.best)}" if math.isfinite(search.best) else "all failed"
    failed = sum(not math.isfinite(t) for t in search.times)
    words = f"{counted(len(search.configs), 'config')}, {failed} failed, {best}"
    head = element("h3", data.label(search.signature, *search.kernel_words, device=search.device))
    return element(
        "div",
        head,
        element("p", words, class_="sub"),
        element("div", _map(search, x, y), class_="map"),
        class_="card",
        data_s=place,
        **data.marks(signature=search.signature, device=search.device),
    )


def _map(search: Search, x: int, y: int | None) -> Markup:
    left, drawn, height = draw_map(search, x, y)
    about = f"{search.knobs[x]} across" + (f", {search.knobs[y]} up" if y is not None else "")
    label = f"best time by {about}; the other knobs chosen again for each cell"
    gutter = element("svg", *left, width=left_of(search, y), height=height, aria_hidden="true")
    names = [
        element("span", f"↑ {search.knobs[y]}") if y is not None else None,
        element("span", f"{search.knobs[x]} →"),
    ]
    foot = element("p", *names, element("span", f"times in {unit_of(search.best)[1]}"), class_="axes")
    picture = draw.svg(*drawn, height=height, label=label)
    width = f"min-width:{left_of(search, y) + _width(search.values[x]) * len(search.values[x])}px"
    return Markup(element("div", gutter, picture, class_="heat", style=width) + foot)


def draw_map(search: Search, x: int, y: int | None) -> tuple[list[Markup], list[Markup], int]:
    """The heat map of knobs ``x`` and ``y``: what stands in the gutter, the cells, the height."""
    cells = grid(search, x, y)
    columns, lines = search.values[x], search.values[y] if y is not None else (None,)
    height = CELL * len(lines)
    unit, _ = unit_of(search.best)
    made = [
        _cell(search, x, y, key, cells.get(key), (len(columns), len(lines)), unit)
        for key in ((i, j) for j in range(len(lines)) for i in range(len(columns)))
    ]
    made += _outline(search, cells, (len(columns), len(lines)))
    made += [
        draw.words((place + 0.5) / len(columns), height + 14, value_words(value), class_="tick")
        for place, value in enumerate(columns)
    ]
    at = {"x": left_of(search, y) - 6, "text_anchor": "end", "class_": "tick"}
    left = [
        element("text", value_words(value), y=height - CELL * (place + 0.5) + 4, **at)
        for place, value in enumerate(lines)
        if y is not None
    ]
    return left, made, height + 18


def left_of(search: Search, y: int | None) -> int:
    """The width of the gutter in pixels, in which the values of knob ``y`` stand."""
    return LABELS if y is None else min(150, max(LABELS, 10 + 7 * _longest(search.values[y])))


def _width(values: Sequence[Any]) -> int:
    return max(34, 6 * _longest(values) + 6)


def _longest(values: Sequence[Any]) -> int:
    return max(len(value_words(value)) for value in values)


def _cell(
    search: Search, x: int, y: int | None, key: tuple[int, int], found: Any, size: tuple[int, int], unit: float
) -> Markup:
    columns, lines = size
    i, j = key
    top = CELL * (lines - 1 - j)
    place = (i / columns, top + 0.5, 1 / columns, CELL - 1)
    pair = f"{search.knobs[x]}={value_words(search.values[x][i])}"
    if y is not None:
        pair += f" {search.knobs[y]}={value_words(search.values[y][j])}"
    if found is None:
        return draw.box(*place, class_="h-none")
    best, statuses = found
    middle = (i + 0.5) / columns
    if not math.isfinite(best):
        status = commonest(statuses)
        spoken = draw.title(f"{pair}: {counted(len(statuses), 'config')}, all failed, most: {FAILURES[status][1]}")
        fill = draw.box(*place, spoken, class_="h-fail", fill=hatch(status))
        return Markup(fill + draw.words(middle, top + CELL / 2 + 4, word(status), class_="v f"))
    ratio = best / search.best
    failed = sum(not s.is_measured for s in statuses)
    spoken = f"{pair}: {duration(best)}, {ratio:.3f} of the best, {counted(len(statuses), 'config')}, {failed} failed"
    shade = bin_of(ratio)
    drawn = draw.box(*place, draw.title(spoken), class_=f"h{shade}")
    return Markup(drawn + draw.words(middle, top + CELL / 2 + 4, digits(best / unit), class_=f"v v{shade}"))


def _outline(
    search: Search, cells: Mapping[tuple[int, int], tuple[float, list[Status]]], size: tuple[int, int]
) -> list[Markup]:
    """The frame of the best cell, over its neighbours."""
    columns, lines = size
    return [
        draw.box(i / columns, CELL * (lines - 1 - j) + 0.5, 1 / columns, CELL - 1, class_="best")
        for (i, j), (time, _) in sorted(cells.items())
        if time == search.best and math.isfinite(time)
    ]


def unit_of(nanoseconds: float) -> tuple[float, str]:
    """The largest unit in which a time is at least 1, as nanoseconds and by name."""
    if not math.isfinite(nanoseconds):
        return _UNITS[2]
    return next((u for u in _UNITS if nanoseconds >= u[0]), _UNITS[-1])


def digits(value: float) -> str:
    """Three digits: ``1.23``, ``12.3``, ``123``."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def value_words(value: Any) -> str:
    """The value of a knob."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _legend() -> Markup:
    ends = ["2 %", "5 %", "10 %", "25 %", "50 %", "2×", "4×"]
    shades = [
        (draw.swatch(element("rect", width=22, height=14, class_=f"h{place}")), f"to {end}")
        for place, end in enumerate(ends)
    ]
    shades.append((draw.swatch(element("rect", width=22, height=14, class_=f"h{len(BINS)}")), "more"))
    shades[0] = (shades[0][0], "within 2 % of the best")
    fails = [
        (draw.swatch(element("rect", width=22, height=14, class_="h-fail", fill=hatch(status))), name)
        for status, (_, name, _) in FAILURES.items()
    ]
    none = (draw.swatch(element("rect", x=1, y=1, width=20, height=12, class_="h-none")), "not tried")
    return draw.legend([*shades, none, *fails])


def _embedded(data: PageData, searches: Sequence[Search]) -> tuple[Markup, int]:
    """The configs and times of the first searches as JSON, and how many are left out."""
    kept: list[str] = []
    budget = data.budget(DATA_BUDGET)
    for search in searches:
        text = json.dumps(_compact(data, search), separators=(",", ":"), allow_nan=False)
        if len(text) > budget:
            break
        budget -= len(text)
        kept.append(text)
    words = json.dumps([FAILURES[s][0] for s in _CODES])
    names = json.dumps([FAILURES[s][1] for s in _CODES])
    slugs = json.dumps([s.replace("_", "-") for s in _CODES])
    body = (
        f'{{"words":{words},"names":{names},"slugs":{slugs},"bins":{json.dumps(BINS)},"searches":[{",".join(kept)}]}}'
    )
    # In a script element only this could end the text.
    safe = Markup(body.replace("<", "\\u003c"))
    return element("script", safe, type="application/json", id="data"), len(searches) - len(kept)


def _compact(data: PageData, search: Search) -> Mapping[str, Any]:
    """A search in few characters: two numbers a config, its place in the product of the values, and its time.

    The time is in thousandths of the best one; a failure is the number of its status, negative, from -1.
    """
    rows: list[int] = []
    places = [{value: place for place, value in enumerate(values)} for values in search.values]
    for config, time, status in zip(search.configs, search.times, search.statuses, strict=True):
        number = 0
        for knob, values in enumerate(search.values):
            number = number * len(values) + places[knob][config[knob]]
        rows += [number, round(1000 * time / search.best) if math.isfinite(time) else -1 - _CODES.index(status)]
    order = search.by_worth
    words = [data.name(search.signature), *search.kernel_words, search.device if len(data.devices) > 1 else ""]
    return {
        "n": " · ".join(filter(None, words)),
        "b": search.best if math.isfinite(search.best) else 0,
        "k": search.knobs,
        "v": [[value_words(value) for value in values] for values in search.values],
        "p": [order[0], order[1] if len(order) > 1 else -1],
        "r": rows,
    }
