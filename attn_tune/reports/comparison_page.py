"""The comparison of two sweeps or packs as one HTML page: static SVG, no script, nothing loaded, equal bytes."""

import importlib.resources
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from attn_tune.reports import comparison, tables
from attn_tune.reports.page import draw
from attn_tune.reports.page.markup import Markup, breakable, details, element, joined, table
from attn_tune.reports.page.scales import Scale

_HEIGHT = 22
_HOW = (
    "B's time over A's: the mark is the ratio, its line the interval of 95 % (of medians what their bounds allow), "
    "and the band what a difference must exceed, the noise or 1 %. Left of 1 B takes less time."
)
_PAGE_STYLE = importlib.resources.files("attn_tune.reports.page") / "assets" / "page.css"
# Colours of verdicts, beside the style of the report's page.
_STYLE = (
    ".worse b{color:var(--bad)}.better b{color:var(--good)}.undecided b{color:var(--muted)}"
    ".worse .win{fill:var(--bad)}.better .win{fill:var(--good)}"
    "td{white-space:nowrap}td:nth-child(2),td:last-child{white-space:normal;min-width:14rem}"
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
        element("p", _HOW, class_="how"),
        element("section", element("h2", f"Better and worse: {len(shown)}"), *(_drawn(shown) or [_none(others)])),
        element("section", element("h2", f"Undecided: {len(others)}"), *_undecided(others, is_open=shown.empty))
        if len(others)
        else None,
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


def _none(others: pd.DataFrame) -> Markup:
    more = " Below are the pairs, and what would decide each." if len(others) else ""
    return element("p", f"No problem is faster or slower beyond noise.{more}", class_="none")


def _undecided(rows: pd.DataFrame, *, is_open: bool) -> Iterator[Markup]:
    """The number of each reason, and the pairs, unfolded where there is nothing else to see."""
    reasons = rows["reason"].value_counts(sort=True)
    said = (f"{count} {reason or 'without a reason'}" for reason, count in sorted(reasons.items(), key=_by_count))
    yield element("p", "; ".join(said) + ".", class_="lead")
    yield details("Pairs, with what would decide them", *_drawn(rows), is_open=is_open)


def _by_count(item: tuple[Any, int]) -> tuple[int, str]:
    return -item[1], str(item[0])


def _drawn(rows: pd.DataFrame) -> list[Markup]:
    """The picture of the ratios, one line a problem, and their table; nothing without rows."""
    if rows.empty:
        return []
    records = rows.to_dict("records")
    bounds = [_bounds(row) for row in records]
    # As far to either side of 1, so that twice and half are equally far.
    reach = 1.05 * max(math.log(1.02), *(abs(math.log(value)) for pair in bounds for value in pair))
    scale = Scale(math.exp(-reach), math.exp(reach), True)
    lines = [_row(row, pair, scale) for row, pair in zip(records, bounds, strict=True)]
    return [draw.rows(draw.axis(scale, lambda tick: f"{tick:g}"), lines, "B's time over A's"), _table(rows)]


def _row(row: Mapping[Any, Any], bounds: tuple[float, float], scale: Scale) -> Markup:
    middle = _HEIGHT / 2
    words = f"{row['point']} {row['direction']}, {row['device']}: {row['b_over_a']:.3f}, {row['verdict']}"
    shapes: list[Markup] = []
    if pd.notna(row["bound"]):
        low, high = (min(max(scale.at(one), 0.0), 1.0) for one in (1 - row["bound"], 1 / (1 - row["bound"])))
        shapes.append(draw.box(low, 0, high - low, _HEIGHT, class_="band"))
    is_decided = row["verdict"] in comparison.DECIDED
    shapes += [
        draw.whisker(scale, *bounds, middle),
        draw.unit(scale, _HEIGHT),
        draw.mark(
            scale.at(row["b_over_a"]),
            middle,
            "square" if is_decided else "diamond",
            class_="win" if is_decided else "tie",
        ),
    ]
    track = draw.track(scale, _HEIGHT, words, *shapes)
    interval = comparison.interval(row["low"], row["high"])
    said = "; ".join(filter(None, (interval, row["reason"] or row["verdict"])))
    value = [element("b", f"{row['b_over_a']:.3f}"), element("span", said, class_="sub")]
    return draw.row(breakable(f"{row['point']} {row['direction']}"), track, joined(value), class_=row["verdict"])


def _bounds(row: Mapping[Any, Any]) -> tuple[float, float]:
    """The interval of a row; without one the ratio alone."""
    known = not (pd.isna(row["low"]) or pd.isna(row["high"]))
    return (row["low"], row["high"]) if known else (row["b_over_a"], row["b_over_a"])


def _table(rows: pd.DataFrame) -> Markup:
    words = tables.formatted(comparison.for_people(rows)).rename(columns={"needs": "what would decide it"})
    words = words.loc[:, (words != "").any()]
    return table(words.columns, words.itertuples(index=False, name=None))
