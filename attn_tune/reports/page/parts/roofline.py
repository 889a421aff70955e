"""Roofline: what share of the device's limits each winner reaches; memory-bound and compute-bound problems apart."""

import functools
from typing import Any

import pandas as pd

from attn_tune.reports.page import draw
from attn_tune.reports.page.data import PageData, fitting
from attn_tune.reports.page.markup import Markup, element, joined
from attn_tune.reports.page.scales import Scale, spanning

TITLE = "How near is each winner to the limits of its device?"
BUDGET = 32_000
HEIGHT = 20
# Of rates without a limit, by ``bound``.
_UNITS = {"unknown": "TFLOP/s", "bytes": "TB/s"}
CHART = 230
GUTTER = 82
_GROUPS = (
    ("compute", "Compute-bound: share of the matrix limit"),
    ("memory", "Memory-bound: share of the copy limit"),
    ("unknown", "No limit is known of this device: operations a second, on a scale of their own"),
    ("bytes", "No limit is known of this device, and nothing is computed: bytes a second, on a scale of their own"),
)


def part(data: PageData) -> list[Markup]:
    """A roofline for each device with known limits, then bars by the limit that binds."""
    table = rates(data.winners)
    if table.empty:
        return [element("p", "No measured winner is of an op that is installed here.", class_="none")]
    groups = list(table.groupby("device", sort=True))
    points = data.budget(BUDGET // 4 // len(groups))
    charts, left_out = fitting(groups, lambda one: _chart(data, str(one[0]), one[1], points), data.budget(BUDGET // 2))
    data.left_out["devices without a roofline"] = left_out
    budget, left_out = data.budget(BUDGET // 2), 0
    parts = [element("div", *charts, class_="cards wide-cards")]
    for bound, words in _GROUPS:
        group = table.loc[table["bound"] == bound]
        if group.empty:
            continue
        scale = _scale(group)
        items, rest = fitting(group.itertuples(index=False), functools.partial(_row, data, scale), budget)
        budget -= sum(map(len, items))
        left_out += rest
        head = draw.axis(scale, functools.partial(_axis_words, _UNITS.get(bound, "")))
        parts += [element("h3", words), draw.rows(head, items, words)]
    data.left_out["bars of the roofline"] = left_out
    return parts


def rates(winners: pd.DataFrame) -> pd.DataFrame:
    """The measured winners with rates and the limit that binds, the nearest to it first.

    ``tflops`` and ``tb_s`` are rates in 1e12 a second. ``bound`` is ``compute`` where the operations need longer at the
    matrix limit than the bytes at the copy limit, else ``memory``; ``unknown`` where a limit that decides is not known,
    ``bytes`` where that is the copy limit because nothing is computed. ``share`` is the rate over the limit that binds;
    without one, the operations or the bytes a second in 1e12.
    """
    table = winners.loc[winners["median_ns"].notna() & winners["flops"].notna()].copy()
    if table.empty:
        return table.assign(bound=[], share=[])
    time = table["median_ns"].astype(float)
    table["tflops"] = table["flops"].astype(float) / time / 1e3
    table["tb_s"] = table["bytes"].astype(float) / time / 1e3
    found = [_bound(row) for row in table.itertuples(index=False)]
    table["bound"], table["share"] = [b for b, _ in found], [s for _, s in found]
    keys = ["bound", "share", "point", "direction", "device"]
    return table.sort_values(keys, ascending=[True, False, True, True, True], kind="stable").reset_index(drop=True)


def _bound(row: Any) -> tuple[str, float]:
    copy = row.tb_s / row.copy_tb_s if row.copy_tb_s else None
    matmul = row.tflops / row.matmul_tflops if row.matmul_tflops else None
    if row.flops == 0 and copy is not None:
        return "memory", copy
    if row.flops == 0:
        return "bytes", row.tb_s
    if copy is None or matmul is None:
        return "unknown", row.tflops
    return ("compute", matmul) if matmul >= copy else ("memory", copy)


def _scale(group: pd.DataFrame) -> Scale:
    shares = [float(s) for s in group["share"]]
    if group["bound"].iloc[0] in _UNITS:
        # From zero: bars are compared by their lengths.
        return Scale(0.0, max(shares) or 1.0)
    return Scale(0.0, max(1.0, 1.02 * max(shares)))


def _row(data: PageData, scale: Scale, row: Any) -> Markup:
    name = data.label(row.signature, row.direction, row.kernel, device=row.device)
    end = scale.at(row.share)
    shapes = [draw.box(0, 4, end, HEIGHT - 8, class_=f"bar b-{row.bound}")]
    if row.bound not in _UNITS:
        shapes.append(draw.unit(scale, HEIGHT))
        limit, unit, is_measured = _limit(row)
        rate = row.tflops if row.bound == "compute" else row.tb_s
        how = "measured" if is_measured else "published"
        value = [
            element("b", f"{100 * row.share:.{0 if row.share >= 0.01 else 2}f} %"),
            element("span", f"{_rate(rate, unit)} of {limit:g} {unit}, {how}", class_="sub"),
        ]
        spoken = f"{100 * row.share:.1f} % of {limit:g} {unit} ({how})"
    else:
        rates = [_rate(row.tflops, "TFLOP/s")] if row.flops else []
        rates.append(_rate(row.tb_s, "TB/s"))
        value = [element("b", rates[0]), element("span", *rates[1:], class_="sub")]
        spoken = ", ".join(rates)
    track = draw.track(scale, HEIGHT, spoken, *shapes)
    return draw.row(name, track, joined(value), **data.marks(signature=row.signature, device=row.device))


def _limit(row: Any) -> tuple[float, str, bool]:
    if row.bound == "compute":
        return row.matmul_tflops, "TFLOP/s", row.is_matmul_measured
    return row.copy_tb_s, "TB/s", row.is_copy_measured


def _rate(value: float, unit: str) -> str:
    """A rate in a unit that suits its size: ``658 TFLOP/s``, ``6.47 GFLOP/s``."""
    for factor, prefix in ((1.0, "T"), (1e3, "G"), (1e6, "M")):
        if value * factor >= 1 or prefix == "M":
            scaled = value * factor
            text = f"{scaled:.0f}" if scaled >= 99.5 else f"{scaled:.3g}"
            return f"{text} {prefix}{unit[1:]}"
    raise AssertionError


def _axis_words(unit: str, value: float) -> str:
    return _rate(value, unit) if unit else f"{100 * value:g} %"


def _rate_words(value: float) -> str:
    return _rate(value, "TFLOP/s")


def _chart(data: PageData, device: str, group: pd.DataFrame, budget: int) -> Markup:
    """Operations a second over operations a byte, both logarithmic, under the roof of the device."""
    first = group.iloc[0]
    drawn = group.loc[(group["flops"].astype(float) > 0) & (group["bytes"].astype(float) > 0)]
    matmul, copy = max(group["matmul_tflops"]), first["copy_tb_s"]
    head = element("h3", f"Roofline of {device}")
    marks = data.marks(device=device)
    if drawn.empty:
        return element("div", head, element("p", "Its ops count no operations.", class_="sub"), class_="card", **marks)
    intensity = drawn["flops"].astype(float) / drawn["bytes"].astype(float)
    ridge = [matmul / copy] if matmul and copy else []
    x = spanning([*intensity, *ridge], is_log=True, margin=0.08)
    y = spanning([*drawn["tflops"], *([matmul] if matmul else [])], is_log=True, margin=0.08)
    lines, gutter = draw.ladder(y, CHART, _rate_words, width=GUTTER)
    shapes: list[Any] = [draw.grid_lines(x, CHART, most=7), *lines]
    if ridge:
        ends = [(v, min(matmul, v * copy)) for v in (x.low, ridge[0], x.high)]
        shapes.append(draw.curve([(x.at(a), y.at(b)) for a, b in ends], "roof"))
    drawable = zip(drawn.itertuples(index=False), intensity, strict=True)
    made, rest = fitting(
        drawable, lambda one: _point(data, one[0], x.at(one[1]), CHART * (1 - y.at(one[0].tflops))), budget
    )
    data.left_out[f"points in the roofline of {device}"] = rest
    shapes += made
    picture = draw.svg(*shapes, height=CHART, label=f"roofline of {device}, {len(made)} winners", class_="chart")
    below = draw.svg(*draw.spaced([(x.at(t), f"{t:g}") for t in x.ticks(7)], 12), height=16)
    plot = element(
        "div", gutter, element("div", picture, below), class_="plot", style=f"grid-template-columns:{GUTTER}px 1fr"
    )
    foot = element("p", "operations a byte →", class_="axes")
    return element(
        "div", head, element("p", _limit_words(first, matmul), class_="sub"), plot, foot, class_="card", **marks
    )


def _point(data: PageData, row: Any, x: float, y: float) -> Markup:
    which = f"{data.name(row.signature)} {row.direction} {row.kernel}"
    words = draw.title(f"{which}: {_rate(row.tflops, 'TFLOP/s')}, {_rate(row.tb_s, 'TB/s')}")
    marks = data.marks(signature=row.signature)
    form = {"compute": "square", "memory": "triangle"}.get(row.bound, "diamond")
    return element("g", draw.mark(x, y, form, words, class_=f"pt b-{row.bound}"), **marks)


def _limit_words(row: Any, matmul: float) -> str:
    def known(value: float, unit: str, is_measured: bool) -> str:
        return f"{value:g} {unit} ({'measured' if is_measured else 'published'})" if value else "not known"

    copy = known(row["copy_tb_s"], "TB/s", bool(row["is_copy_measured"]))
    if not matmul and not row["copy_tb_s"]:
        return "no limit is known of this device, so no roof is drawn"
    return f"matrix limit {known(matmul, 'TFLOP/s', bool(row['is_matmul_measured']))}, copy limit {copy}"
