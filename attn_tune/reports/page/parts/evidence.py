"""Evidence: one decision down to its samples, those of the untuned config beside those of its fastest rival."""

import json
from typing import Any

import numpy as np

from attn_tune.reports.page import draw
from attn_tune.reports.page.data import PageData, fitting
from attn_tune.reports.page.markup import Markup, details, element, joined
from attn_tune.reports.page.scales import Scale, spanning
from attn_tune.schema import Rule
from attn_tune.schema.words import config_words, counted, duration

TITLE = "What is a decision made of?"
BUDGET = 36_000
STRIP = 30
MOST = 96


def part(data: PageData) -> list[Markup]:
    """One block a decision, the largest gain first: samples, the ratio of each turn, its interval, the rule."""
    if data.races.empty:
        return [element("p", "No decision has both an untuned config and a rival that were measured.", class_="none")]
    order = data.races.assign(less=-data.races["speedup"]).sort_values(
        ["less", "signature", "direction", "device"], kind="stable"
    )
    items, rest = fitting(
        enumerate(order.itertuples(index=False)),
        lambda one: _decision(data, one[1], is_open=one[0] == 0),
        data.budget(BUDGET),
    )
    data.left_out["decisions without their samples"] = rest
    return [_legend(), *items]


def _decision(data: PageData, row: Any, *, is_open: bool) -> Markup:
    untuned, rival = row.untuned_ns[:MOST], row.rival_ns[:MOST]
    x = spanning([*untuned, *rival])
    kernel = row.kernel.rpartition("/")[2]
    verdict = "tie: the untuned config stays" if row.rule == Rule.TIE else f"paired speedup {row.speedup:.3f}×"
    words = [row.direction, kernel, verdict]
    summary = data.label(row.signature, *words, device=row.device)
    strips = [
        _strip("untuned", row.untuned_config, untuned, x, "s-untuned"),
        _strip("winner" if row.rule != Rule.TIE else "rival", row.rival_config, rival, x, "s-rival"),
    ]
    axis = draw.axis(x, duration, most=5)
    ratios = _ratios(row) if row.is_paired else None
    sentence = element("p", _sentence(row), class_="sub")
    return details(
        summary,
        draw.rows(axis, strips, "samples"),
        ratios,
        sentence,
        is_open=is_open,
        class_="evidence",
        **data.marks(signature=row.signature, device=row.device),
    )


def _strip(name: str, config: str, samples: tuple[int, ...], x: Scale, class_: str) -> Markup:
    median = float(np.median(samples))
    step = (STRIP - 10) / max(1, len(samples) - 1)
    dots = draw.cloud(((x.at(s), 5 + step * place) for place, s in enumerate(samples)), class_)
    line = draw.line(x.at(median), 0, x.at(median), STRIP, "median")
    label = f"{name}: {counted(len(samples), 'sample')}, median {duration(median)}"
    track = draw.svg(draw.grid_lines(x, STRIP, most=5), line, dots, height=STRIP, label=label, class_="track")
    head = Markup(element("b", name) + element("span", config_words(json.loads(config)), class_="sub"))
    return draw.row(
        head, track, Markup(element("b", duration(median)) + element("span", f"{len(samples)} samples", class_="sub"))
    )


def ratios(row: Any) -> np.ndarray:
    """Time of the untuned config over that of the rival, turn by turn."""
    return np.array(row.untuned_ns, float) / np.array(row.rival_ns, float)


def _ratios(row: Any) -> Markup:
    found = ratios(row)[:MOST]
    x = spanning([1.0, row.low, row.high, *found.tolist()], is_log=True)
    step = (STRIP - 10) / max(1, len(found) - 1)
    dots = draw.cloud(((x.at(r), 5 + step * place) for place, r in enumerate(found.tolist())), "s-ratio")
    low, high, middle = x.at(row.low), x.at(row.high), x.at(row.speedup)
    band = draw.box(low, 0, high - low, STRIP, class_="interval")
    marks = [draw.line(x.at(1.0), 0, x.at(1.0), STRIP, "unit"), draw.line(middle, 0, middle, STRIP, "median")]
    label = f"paired speedup {row.speedup:.3f}, at 95 % between {row.low:.3f} and {row.high:.3f}"
    track = draw.svg(draw.grid_lines(x, STRIP, most=5), band, *marks, dots, height=STRIP, label=label, class_="track")
    head = Markup(
        element("b", f"untuned over {'rival' if row.rule == Rule.TIE else 'winner'}")
        + element("span", f"turn by turn, {counted(len(row.rounds), 'round')}", class_="sub")
    )
    value = Markup(
        element("b", f"{row.speedup:.3f}×") + element("span", f"[{row.low:.3f}, {row.high:.3f}]", class_="sub")
    )
    return draw.rows(
        draw.axis(x, lambda v: f"{v:.4g}×", most=5), [draw.row(head, track, value)], "ratio of paired samples"
    )


def _sentence(row: Any) -> str:
    shown = f"; the first {MOST} are drawn" if len(row.untuned_ns) > MOST or len(row.rival_ns) > MOST else ""
    if row.is_paired:
        fewer = int((ratios(row) > 1).sum())
        how = f"Measured in turns: the untuned config was slower in {fewer} of {len(row.untuned_ns)} turns{shown}."
    else:
        counts = f"{len(row.untuned_ns)} and {len(row.rival_ns)}"
        how = f"Not measured in turns: the medians of {counts} samples are compared{shown}."
    if row.rule == Rule.TIE:
        return (
            f"{how} No rival wins: that takes a sign test and a bootstrap at 1 %, shared among all rivals, and a gain "
            "above 1 %, half a microsecond and what a config shows against itself. So the untuned config stays."
        )
    if row.rule == Rule.WINNER:
        return f"{how} The gain is above 1 % and half a microsecond, and the interval excludes 1."
    return f"{how} Decided by the rule “{row.rule}”."


def _legend() -> Markup:
    entries = [
        (draw.swatch(element("circle", cx=11, cy=7, r=3, class_="s-untuned")), "a sample of the untuned config"),
        (draw.swatch(element("circle", cx=11, cy=7, r=3, class_="s-rival")), "of the winner or rival"),
        (draw.swatch(element("path", d="M11 0v14", class_="median")), "median"),
        (draw.swatch(element("rect", y=1, width=22, height=12, class_="interval")), "interval at 95 %"),
    ]
    return joined([draw.legend(entries), element("p", "Within a strip the first sample is at the top.", class_="sub")])
