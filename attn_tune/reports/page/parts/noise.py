"""Noise and cost: how steady the samples were, the state of the device meanwhile, and where the time went."""

import json
from collections import Counter
from typing import Any

import pandas as pd

from attn_tune.reports.page import conditions, draw
from attn_tune.reports.page.data import PageData, fitting, rows_of
from attn_tune.reports.page.markup import Markup, breakable, details, element, table
from attn_tune.reports.page.scales import Scale, spanning
from attn_tune.schema import Stage
from attn_tune.schema.conditions import Conditions
from attn_tune.schema.words import counted, duration

TITLE = "How steady were the times, and what did the sweep cost?"
BUDGET = 14_000
HEIGHT = 20
# Problems that are shown at once; the others are unfolded.
FIRST = 10
_PHASES = (("compile", "compile"), ("prove", "prove"), ("time", "time"), ("final", "finals"))


def part(data: PageData) -> list[Markup]:
    """The spread of samples by problem, clocks and temperatures of finals, and seconds by phase."""
    return [*_spread(data), *_conditions(data), *conditions.part(data.software), *_phases(data)]


def spreads(trials: pd.DataFrame) -> pd.DataFrame:
    """One row a (problem, direction, device): a tenth, the median and nine tenths of the dispersions of its trials.

    A dispersion is the median distance of a trial's samples from their median, as a share of it.
    """
    measured = trials.loc[trials["dispersion"].notna() & (trials["samples"] > 1)]
    keys = ["signature", "direction", "device"]
    if measured.empty:
        return pd.DataFrame(columns=[*keys, "low", "middle", "high", "trials"])
    groups = measured.groupby(keys, sort=True)["dispersion"]
    found = pd.DataFrame(
        {"low": groups.quantile(0.1), "middle": groups.median(), "high": groups.quantile(0.9), "trials": groups.size()}
    ).reset_index()
    return found.sort_values(["middle", *keys], ascending=[False, True, True, True], kind="stable")


def _spread(data: PageData) -> list[Markup]:
    found = spreads(data.trials)
    head = element("h3", "Spread of the samples of one trial")
    if found.empty:
        return [head, element("p", "No trial has several samples.", class_="none")]
    values = [max(float(v), 1e-5) for column in ("low", "middle", "high") for v in found[column]]
    scale = spanning(values, is_log=True)
    items, rest = fitting(found.itertuples(index=False), lambda row: _spread_row(data, row, scale), data.budget(BUDGET))
    data.left_out["problems without a spread"] = rest
    note = element(
        "p",
        "The median distance of samples from their median. Line: eight of ten trials; mark: their median.",
        class_="sub",
    )
    first = draw.rows(draw.axis(scale, _share), items[:FIRST], "spread of samples, the largest first")
    others = items[FIRST:]
    more = details(f"{counted(len(others), 'steadier one')}", draw.rows(draw.axis(scale, _share), others, "the others"))
    return [head, note, first, *([more] if others else [])]


def _share(value: float) -> str:
    return f"{100 * value:g} %"


def _spread_row(data: PageData, row: Any, scale: Scale) -> Markup:
    low, middle, high = (scale.at(max(float(v), 1e-5)) for v in (row.low, row.middle, row.high))
    y = HEIGHT / 2
    words = f"median {100 * row.middle:.2f} %, eight of ten trials {100 * row.low:.2f} to {100 * row.high:.2f} %"
    shapes = [draw.line(low, y, high, y, "span"), draw.dot(middle, y, 4, class_="win")]
    name = data.label(row.signature, row.direction, device=row.device)
    value = Markup(
        element("b", f"{100 * row.middle:.2f} %") + element("span", counted(int(row.trials), "trial"), class_="sub")
    )
    track = draw.track(scale, HEIGHT, words, *shapes)
    return draw.row(name, track, value, **data.marks(signature=row.signature, device=row.device))


def _conditions(data: PageData) -> list[Markup]:
    head = Markup(element("h3", "The device during finals") + _disturbed(data))
    names = ("clock", "temperature", "power")
    known = data.finals.loc[data.finals[[f"{name}_low" for name in names]].notna().any(axis=1)]
    if known.empty:
        return [head, element("p", "No clocks, temperatures or powers are stored.", class_="none")]
    rows = [_condition_row(data, str(device), group) for device, group in known.groupby("device", sort=True)]
    headers = ["device", "finals", "clock, MHz", "temperature, °C", "power, W", "slowed by", "repeated"]
    return [head, table(headers, rows, numeric=[1, 6])]


def disturbances(finals: pd.DataFrame) -> dict[tuple[str, str, str], tuple[str, ...]]:
    """The problems, directions and devices whose last final was disturbed, each with what disturbed it."""
    last = finals.drop_duplicates(["signature", "direction", "device"], keep="last")
    found = {(r.signature, r.direction, r.device): _seen(r).disturbances for r in rows_of(last)}
    return {key: causes for key, causes in found.items() if causes}


def _seen(final: Any) -> Conditions:
    clocks = None if pd.isna(final.clock_low) else (int(final.clock_low), int(final.clock_high))
    throttle = tuple(json.loads(final.throttle)) if isinstance(final.throttle, str) else ()
    return Conditions(sm_clock_mhz=clocks, throttle=throttle)


def _disturbed(data: PageData) -> Markup:
    found = disturbances(data.finals)
    if not found:
        return Markup()
    counts = Counter(cause for causes in found.values() for cause in causes)
    causes = "; ".join(f"{cause} ({count})" for cause, count in sorted(counts.items()))
    words = f"{counted(len(found), 'last final')} disturbed: {causes}. The release gate refuses such rows; sweep again."
    return element("p", words, class_="warning")


def _condition_row(data: PageData, device: str, group: pd.DataFrame) -> Markup:
    def span(name: str) -> str:
        low, high = group[f"{name}_low"].dropna().tolist(), group[f"{name}_high"].dropna().tolist()
        return "-" if not low else f"{min(low)} to {max(high)}"

    reasons = sorted(
        {
            word
            for text in group["throttle"].dropna()
            for word in str(text).strip("[]").replace('"', "").split(",")
            if word
        }
    )
    repeats = sum(group["repeats"].dropna().tolist())
    cells = [
        device,
        len(group),
        span("clock"),
        span("temperature"),
        span("power"),
        ", ".join(reasons) or "nothing",
        repeats,
    ]
    return element(
        "tr",
        *(element("td", c, class_="n" if i in (1, 6) else None) for i, c in enumerate(cells)),
        **data.marks(device=device),
    )


def phases(trials: pd.DataFrame) -> pd.DataFrame:
    """One row a (device, kernel): seconds of compiling, proving, timing and finals, as they are stored."""
    is_final = trials["stage"] == Stage.FINAL
    table = pd.DataFrame(
        {
            "device": trials["device"],
            "kernel": trials["kernel"],
            # A final proves nothing: its trials repeat what the search took. It may compile once more.
            "compile": trials["compile_ms"],
            "prove": trials["prove_ms"].where(~is_final),
            "time": trials["run_ms"].where(~is_final),
            "final": trials["run_ms"].where(is_final),
        }
    )
    groups = table.groupby(["device", "kernel"], sort=True)
    sums: Any = groups[[name for name, _ in _PHASES]].sum()
    sums = sums / 1e3
    found = sums.assign(total=sums.sum(axis=1), trials=groups.size()).reset_index()
    return found.sort_values(["total", "device", "kernel"], ascending=[False, True, True], kind="stable")


def _phases(data: PageData) -> list[Markup]:
    found = phases(data.trials)
    found = found.loc[found["total"] > 0]
    head = element("h3", "Seconds by phase")
    if found.empty:
        return [head, element("p", "No times of phases are stored.", class_="none")]
    scale = Scale(0.0, float(found["total"].max()))
    items, rest = fitting(
        found.itertuples(index=False), lambda row: _phase_row(data, row, scale), data.budget(BUDGET // 2)
    )
    data.left_out["kernels without a bar of phases"] = rest
    keys = [(draw.swatch(element("rect", width=22, height=14, class_=f"p-{name}")), words) for name, words in _PHASES]
    totals = {words: float(found[name].sum()) for name, words in _PHASES}
    lead = "Together: " + ", ".join(f"{words} {duration(s * 1e9)}" for words, s in totals.items() if s)
    lead += ". A sweep takes longer: starts of workers, references and feature problems belong to no trial"
    rows = [
        [r.device, r.kernel, *(f"{getattr(r, name):.1f}" for name, _ in _PHASES), r.trials]
        for r in found.head(len(items)).itertuples(index=False)
    ]
    numbers = table(["device", "kernel", *(f"{words}, s" for _, words in _PHASES), "trials"], rows, numeric=range(2, 7))
    axis = draw.axis(scale, lambda v: duration(v * 1e9) if v else "0 s")
    return [
        head,
        element("p", lead + ".", class_="sub"),
        draw.legend(keys),
        draw.rows(axis, items, "seconds by phase"),
        details("The numbers", numbers),
    ]


def _phase_row(data: PageData, row: Any, scale: Scale) -> Markup:
    shapes, start = [draw.grid_lines(scale, HEIGHT)], 0.0
    for name, words in _PHASES:
        value = float(getattr(row, name))
        shapes.append(
            draw.box(
                scale.at(start),
                3,
                scale.at(start + value) - scale.at(start),
                HEIGHT - 6,
                draw.title(f"{words} {duration(value * 1e9)}"),
                class_=f"p-{name}",
            )
        )
        start += value
    name = Markup(element("b", breakable(row.kernel)) + element("span", row.device, class_="sub"))
    value = Markup(
        element("b", duration(row.total * 1e9)) + element("span", counted(int(row.trials), "trial"), class_="sub")
    )
    track = draw.svg(*shapes, height=HEIGHT, label=f"{row.kernel}: {duration(row.total * 1e9)}", class_="track")
    return draw.row(name, track, value, **data.marks(device=row.device))
