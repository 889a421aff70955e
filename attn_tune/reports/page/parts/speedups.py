"""Speedups: the winner over the untuned config, each with its interval; ties are marked as ties."""

import math
from typing import Any

import pandas as pd

from attn_tune.reports.frames import NOISY
from attn_tune.reports.page import draw
from attn_tune.reports.page.data import PageData, fitting, how_many, rows_of
from attn_tune.reports.page.markup import Markup, element
from attn_tune.reports.page.scales import Scale, spanning
from attn_tune.schema import Grade, Rule
from attn_tune.schema.decision import MIN_GAIN_NS
from attn_tune.schema.words import counted, duration

TITLE = "What does tuning win, and how surely?"
BUDGET = 34_000
HEIGHT = 22
_MIDDLE = HEIGHT / 2
# Rules of decisions that no rival took part in, each in words.
_WITHOUT_RIVAL = {Rule.ONLY: "the one config that was right", Rule.SEARCH: "no final has decided yet"}


def part(data: PageData) -> list[Markup]:
    """Bars of the time of the untuned config over that of the winner, the largest first."""
    table = _with_races(data)
    if table.empty:
        return [element("p", "No problem has a decision.", class_="none")]
    scale = _scale(table)
    items, rest = fitting(rows_of(table), lambda row: _row(data, row, scale), data.budget(BUDGET))
    data.left_out["decisions without a bar"] = rest
    axis = draw.axis(scale, lambda value: f"{value:g}×")
    return [_summary(table), _legend(), draw.rows(axis, items, "speedups, the largest first")]


def _with_races(data: PageData) -> pd.DataFrame:
    """The winners with the speedup and interval of their race, wins first, then ties, then what has no rival."""
    races = {(r.signature, r.direction, r.device, r.kernel.rpartition("/")[2]): r for r in rows_of(data.races)}
    table = data.winners.loc[data.winners["median_ns"].notna()].reset_index(drop=True)
    found = [races.get((r.signature, r.direction, r.device, r.kernel)) for r in rows_of(table)]
    gains = table["speedup"].astype(float)
    for column in ("speedup", "low", "high"):
        table[column] = [math.nan if race is None else getattr(race, column) for race in found]
    table["is_paired"] = [race is not None and race.is_paired for race in found]
    table["speedup"] = table["speedup"].where(table["speedup"].notna() | (table["rule"] == Rule.TIE), gains)
    table["place"] = [0 if rule == Rule.WINNER else 1 if rule == Rule.TIE else 2 for rule in table["rule"]]
    order = table.assign(less=-table["speedup"].astype(float))
    order = order.sort_values(["place", "less", "point", "direction", "device"], kind="stable", na_position="last")
    return table.loc[order.index].reset_index(drop=True)


def _scale(table: pd.DataFrame) -> Scale:
    """From all that is drawn and 1; logarithmic, so that twice and half are equally far from 1."""
    table = table.loc[~table["rule"].isin(list(_WITHOUT_RIVAL))]
    values = [float(v) for column in ("speedup", "low", "high") for v in table[column].dropna() if v > 0]
    # One wild interval of few samples must not press all others together.
    highest = max([float(v) for v in table["speedup"].dropna()] or [1.0])
    values = [min(max(v, 0.5), 1.6 * max(highest, 1.1)) for v in values]
    return spanning([1.0, 1.05, *values], is_log=True)


def _row(data: PageData, row: Any, scale: Scale) -> Markup:
    name = data.label(row.signature, row.direction, row.kernel, device=row.device)
    marks = data.marks(signature=row.signature, device=row.device)
    if pd.isna(row.speedup) or row.rule in _WITHOUT_RIVAL:
        words = _WITHOUT_RIVAL.get(row.rule, "the untuned config never ran right")
        value = Markup(element("b", row.rule if row.rule in _WITHOUT_RIVAL else "-", class_="word"))
        words = ", ".join(filter(None, (duration(row.median_ns), words, _stale(row))))
        value = Markup(value + element("span", words, class_="sub"))
        return draw.row(name, draw.svg(draw.grid_lines(scale, HEIGHT), height=HEIGHT, class_="track"), value, **marks)
    value = _value(row)
    return draw.row(name, _track(row, scale), value, class_=str(row.rule), **marks)


def _track(row: Any, scale: Scale) -> Markup:
    one, end = scale.at(1.0), scale.at(row.speedup)
    is_tie = row.rule == Rule.TIE
    shapes: list[Any] = []
    if not is_tie:
        shapes.append(draw.box(min(one, end), 5, abs(end - one), HEIGHT - 10, class_="bar"))
    if pd.notna(row.low):
        shapes.append(draw.whisker(scale, row.low, row.high, _MIDDLE))
    shapes.append(draw.unit(scale, HEIGHT))
    shapes.append(draw.mark(end, _MIDDLE, "diamond" if is_tie else "square", class_="tie" if is_tie else "win"))
    return draw.track(scale, HEIGHT, _spoken(row), *shapes)


def _interval(row: Any) -> str:
    return f"{row.low:.2f} to {row.high:.2f}" if pd.notna(row.low) else "no interval"


def _regret(row: Any) -> str:
    """A word of warning where another config may be much faster."""
    bound = row.regret_bound
    return f"regret up to {float(bound):.0%}" if pd.notna(bound) and float(bound) > NOISY else ""


def _stale(row: Any) -> str:
    """A word of warning where the kernel's source here is not the one that was measured."""
    return Grade.STALE if row.stale is True else ""


def _spoken(row: Any) -> str:
    how = "of samples taken in turns" if row.is_paired else "of separate samples"
    if row.rule == Rule.TIE:
        return f"tie, the untuned config stays: the nearest rival has {row.speedup:.3f}, {_interval(row)} (95 %, {how})"
    return f"paired speedup {row.speedup:.3f}, {_interval(row)} (95 %, {how})"


def _value(row: Any) -> Markup:
    time = duration(row.median_ns)
    if row.rule == Rule.TIE:
        rival = f"rival {row.speedup:.2f}× [{row.low:.2f}, {row.high:.2f}]" if pd.notna(row.low) else ""
        if pd.notna(row.low) and row.low > 1 and row.median_ns * (1 - 1 / row.speedup) < MIN_GAIN_NS:
            rival += f", under {MIN_GAIN_NS / 1000:g} us"
        words = " ".join(filter(None, (time, rival, _regret(row), _stale(row))))
        return Markup(element("b", "tie", class_="word") + element("span", words, class_="sub"))
    interval = f"[{row.low:.2f}, {row.high:.2f}]" if pd.notna(row.low) else ""
    before = f"{duration(row.heuristic_ns)} → " if pd.notna(row.heuristic_ns) else ""
    words = " ".join(filter(None, (interval, before + time, _regret(row), _stale(row))))
    return Markup(element("b", f"{row.speedup:.2f}×") + element("span", words, class_="sub"))


def _summary(table: pd.DataFrame) -> Markup:
    wins = table.loc[table["rule"] == Rule.WINNER, "speedup"].dropna().astype(float)
    ties = how_many(table["rule"] == Rule.TIE)
    only, open_ones = how_many(table["rule"] == Rule.ONLY), how_many(table["rule"] == Rule.SEARCH)
    words = [counted(len(wins), "win")]
    if len(wins):
        mean = math.exp(sum(math.log(win) for win in wins) / len(wins))
        words[0] += f" (geometric mean {mean:.2f}×, largest {wins.max():.2f}×)"
    words += [counted(ties, "tie")] if ties else []
    words += [f"{only} with one right config"] if only else []
    words += [f"{open_ones} without a final yet"] if open_ones else []
    return element("p", ", ".join(words) + ".", class_="lead")


def _legend() -> Markup:
    win = draw.swatch(
        element("rect", x=1, y=4, width=14, height=6, class_="bar"),
        element("rect", x=11, y=3, width=8, height=8, class_="win"),
    )
    whisker = draw.swatch(element("path", d="M3 7h16M3 3v8M19 3v8", class_="whisker"))
    tie = draw.swatch(element("path", d="M5 7l6-6 6 6-6 6z", class_="tie"))
    return draw.legend(
        [
            (win, "paired speedup of the winner"),
            (whisker, "interval at 95 %"),
            (tie, "tie: the rival that came nearest; the untuned config stays"),
        ]
    )
