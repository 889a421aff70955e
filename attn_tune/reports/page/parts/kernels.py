"""Kernels: the best config of each kernel for a problem, side by side, with its error over what is allowed."""

from collections import defaultdict
from typing import Any

import pandas as pd

from attn_tune.reports.page import draw
from attn_tune.reports.page.data import PageData, fitting, rows_of
from attn_tune.reports.page.markup import Markup, element
from attn_tune.reports.page.scales import Scale, spanning
from attn_tune.schema.words import duration

TITLE = "Which kernel is fastest, and how right is it?"
BUDGET = 26_000
HEIGHT = 18
_CASE = ["signature", "direction", "device"]


def part(data: PageData) -> list[Markup]:
    """A bar a kernel, its time over that of the fastest one of the problem; problems of several kernels first."""
    table = compared(data.kernels)
    if table.empty:
        return [element("p", "No problem has a decision.", class_="none")]
    scale = spanning([1.0, 1.1, *table["ratio"].astype(float)], is_log=True)
    items, rest = fitting(rows_of(table), lambda row: _row(data, row, scale), data.budget(BUDGET))
    data.left_out["kernels of a problem"] = rest
    axis = draw.axis(scale, lambda value: f"{value:g}×")
    return [draw.rows(axis, items, "kernels by problem, the fastest first")]


def compared(kernels: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``kernels`` that were measured, with their time over the least of their problem as ``ratio``."""
    table = kernels.loc[kernels["median_ns"].notna()].copy()
    times: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows_of(table):
        times[row.signature, row.direction, row.device].append(float(row.median_ns))
    cases = [times[row.signature, row.direction, row.device] for row in rows_of(table)]
    table["ratio"] = [float(time) / min(found) for time, found in zip(table["median_ns"], cases, strict=True)]
    table["is_alone"] = [len(found) == 1 for found in cases]
    return table.sort_values(["is_alone", "point", *_CASE, "ratio", "kernel"], kind="stable").reset_index(drop=True)


def _row(data: PageData, row: Any, scale: Scale) -> Markup:
    one, end = scale.at(1.0), scale.at(row.ratio)
    error = "not compared" if pd.isna(row.worst_error) else f"error {row.worst_error:.2f} of what is allowed"
    spoken = f"{row.kernel}: {duration(row.median_ns)}, {row.ratio:.2f} times the fastest, {error}"
    shapes = [
        draw.box(one, 4, end - one, HEIGHT - 8, class_="bar"),
        draw.unit(scale, HEIGHT),
        draw.mark(end, HEIGHT / 2, "square", class_="win" if row.ratio == 1 else "tie"),
    ]
    track = draw.track(scale, HEIGHT, spoken, *shapes)
    how_far = "" if row.ratio == 1 else f"{row.ratio:.2f}×, "
    value = element("b", duration(row.median_ns)) + element("span", f"{how_far}{error}", class_="sub")
    name = data.label(row.signature, row.direction, row.kernel, device=row.device)
    return draw.row(name, track, Markup(value), **data.marks(signature=row.signature, device=row.device))
