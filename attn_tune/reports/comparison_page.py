"""The comparison of two sweeps or packs as one HTML page: static SVG, no script, nothing loaded, equal bytes."""

import importlib.resources
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from attn_tune.reports import comparison, tables
from attn_tune.reports.page import draw
from attn_tune.reports.page.markup import Markup, details, element, joined, table
from attn_tune.reports.page.scales import Scale

_HEIGHT = 22
_PAGE_STYLE = importlib.resources.files("attn_tune.reports.page") / "assets" / "page.css"
# Colours of verdicts, beside the style of the report's page.
_STYLE = ".worse{color:var(--bad)}.better{color:var(--good)}.undecided{color:var(--muted)}" + (
    ".ratio{stroke:currentColor;fill:currentColor;stroke-width:2}td:nth-child(2){white-space:normal;min-width:14rem}"
)


def page(compared: pd.DataFrame, summary: Mapping[str, Any]) -> str:
    """The page of a frame of ``comparison.frame``; the same input gives the same bytes."""
    head, *rest = comparison.lines(summary)
    timed = compared.loc[compared["b_over_a"].notna()]
    shown = comparison.decided(timed)
    others = timed.drop(index=shown.index)
    alone = compared.loc[compared["verdict"].isin(list(comparison.ONE_SIDE))]
    style = _PAGE_STYLE.read_text(encoding="utf-8")
    parts = [
        element("h1", head),
        *(element("p", f"{line}.") for line in rest),
        element(
            "p", "B's time over A's, with the interval of 95 %; of medians, what their bounds allow.", class_="how"
        ),
        element("section", element("h2", f"Better and worse: {len(shown)}"), *_drawn(shown)),
        element("section", details(f"Undecided: {len(others)}", *_drawn(others))) if len(others) else None,
        element("section", element("h2", "In one alone"), _table(alone)) if len(alone) else None,
    ]
    top = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("title", head),
        element("style", Markup(style + _STYLE)),
    )
    body = element("body", element("div", joined(parts, "\n"), class_="page"))
    return "<!doctype html>\n" + element("html", top, body, lang="en") + "\n"


def _drawn(rows: pd.DataFrame) -> Iterator[Markup]:
    """The picture of the ratios, one line a problem, and their table."""
    if rows.empty:
        return
    records = rows.to_dict("records")
    bounds = [_bounds(row) for row in records]
    # As far to either side of 1, so that twice and half are equally far.
    reach = 1.05 * max(math.log(1.02), *(abs(math.log(value)) for pair in bounds for value in pair))
    scale = Scale(math.exp(-reach), math.exp(reach), True)
    lines = [_row(row, pair, scale) for row, pair in zip(records, bounds, strict=True)]
    yield draw.rows(draw.axis(scale, lambda tick: f"{tick:g}"), lines, "B's time over A's")
    yield _table(rows)


def _row(row: Mapping[Any, Any], bounds: tuple[float, float], scale: Scale) -> Markup:
    low, high = map(scale.at, bounds)
    middle = _HEIGHT / 2
    words = f"{row['point']} {row['direction']}, {row['device']}: {row['b_over_a']:.3f}, {row['verdict']}"
    track = draw.svg(
        draw.title(words),
        draw.grid_lines(scale, _HEIGHT),
        draw.line(scale.at(1.0), 0, scale.at(1.0), _HEIGHT, "unit"),
        draw.line(low, middle, high, middle, "ratio"),
        draw.dot(scale.at(row["b_over_a"]), middle, 3.5, class_="ratio"),
        height=_HEIGHT,
        label=words,
        class_="track",
    )
    interval = comparison.interval(row["low"], row["high"])
    value = [element("b", f"{row['b_over_a']:.3f}"), element("span", interval or row["verdict"], class_="sub")]
    return draw.row(f"{row['point']} {row['direction']}", track, joined(value), class_=row["verdict"])


def _bounds(row: Mapping[Any, Any]) -> tuple[float, float]:
    """The interval of a row; without one the ratio alone."""
    known = not (pd.isna(row["low"]) or pd.isna(row["high"]))
    return (row["low"], row["high"]) if known else (row["b_over_a"], row["b_over_a"])


def _table(rows: pd.DataFrame) -> Markup:
    words = tables.formatted(comparison.for_people(rows))
    words = words.loc[:, (words != "").any()]
    return table(words.columns, words.itertuples(index=False, name=None))
