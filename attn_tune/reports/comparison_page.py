"""The comparison of two sweeps or packs as one HTML page: static SVG, no script, nothing loaded, equal bytes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd

from attn_tune.reports import comparison, tables

_LABELS, _PLOT, _ROW, _TOP = 330, 560, 20, 34
_STYLE = """
:root { --back: #ffffff; --text: #1f2328; --faint: #59636e; --line: #d1d9e0;
  --worse: #cf222e; --better: #1a7f37; --undecided: #6e7781; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --text: #f0f6fc; --faint: #9198a1; --line: #3d444d;
  --worse: #ff7b72; --better: #3fb950; --undecided: #9198a1; } }
body { background: var(--back); color: var(--text); font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 960px; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .6rem; text-align: left; white-space: nowrap; }
td:nth-child(2) { white-space: normal; min-width: 14rem; }
svg { width: 100%; height: auto; font: 11px system-ui, sans-serif; fill: var(--text); }
.worse { color: var(--worse); } .better { color: var(--better); } .undecided { color: var(--undecided); }
svg line, svg circle { stroke: currentColor; fill: currentColor; }
svg .grid { color: var(--line); } svg .one { color: var(--faint); } p { color: var(--faint); margin: .3rem 0; }
"""


def page(compared: pd.DataFrame, summary: Mapping[str, Any]) -> str:
    """The page of a frame of ``comparison.frame``; the same input gives the same bytes."""
    head, *rest = comparison.lines(summary)
    timed = compared.loc[compared["b_over_a"].notna()]
    shown = comparison.decided(timed)
    others = timed.drop(index=shown.index)
    alone = compared.loc[compared["verdict"].isin(list(comparison.ONE_SIDE))]
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(head)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(head)}</h1>",
        *(f"<p>{escape(line)}.</p>" for line in rest),
        "<p>B's time over A's, with the interval of 95 %; of medians, what their bounds allow.</p>",
        *_section("Better and worse", shown),
        *(["<details>", *_section("Undecided", others), "</details>"] if len(others) else []),
        *(["<h2>In one alone</h2>", _table(alone)] if len(alone) else []),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _section(title: str, rows: pd.DataFrame) -> Iterator[str]:
    heading = f"{escape(title)}: {len(rows)}"
    yield f"<summary>{heading}</summary>" if title == "Undecided" else f"<h2>{heading}</h2>"
    if len(rows):
        yield _plot(rows.to_dict("records"))
        yield _table(rows)


def _plot(rows: Sequence[Mapping[Any, Any]]) -> str:
    """Ratios with their intervals, one line a problem, on a logarithmic axis around 1."""
    bounds = [_bounds(row) for row in rows]
    reach = max(math.log(1.02), *(abs(math.log(value)) for pair in bounds for value in pair)) * 1.05
    height = _TOP + _ROW * len(rows) + 6

    def x(ratio: float) -> str:
        return f"{_LABELS + _PLOT * (0.5 + math.log(ratio) / (2 * reach)):.1f}"

    parts = [f'<svg viewBox="0 0 {_LABELS + _PLOT + 20} {height}" role="img" aria-label="B\'s time over A\'s">']
    for tick in _ticks(reach):
        kind = "one" if tick == 1 else "grid"
        parts.append(
            f'<line class="{kind}" x1="{x(tick)}" x2="{x(tick)}" y1="{_TOP - 8}" y2="{height}"/>'
            f'<text x="{x(tick)}" y="{_TOP - 14}" text-anchor="middle">{tick:g}</text>'
        )
    for place, (row, (low, high)) in enumerate(zip(rows, bounds, strict=True)):
        y = _TOP + _ROW * place + 8
        label = f"{row['point']} {row['direction']}"
        label = label if len(label) <= 50 else f"{label[:23]} ... {label[-23:]}"
        tip = f"{row['point']} {row['direction']}, {row['device']}: {row['b_over_a']:.3f}, {row['verdict']}"
        parts.append(
            f'<g class="{row["verdict"]}"><title>{escape(tip)}</title>'
            f'<text x="{_LABELS - 10}" y="{y + 4}" text-anchor="end">{escape(label)}</text>'
            f'<line x1="{x(low)}" x2="{x(high)}" y1="{y}" y2="{y}" stroke-width="2"/>'
            f'<circle cx="{x(row["b_over_a"])}" cy="{y}" r="3.5"/></g>'
        )
    return "".join([*parts, "</svg>"])


def _bounds(row: Mapping[Any, Any]) -> tuple[float, float]:
    """The interval of a row; without one the ratio alone."""
    known = not (pd.isna(row["low"]) or pd.isna(row["high"]))
    return (row["low"], row["high"]) if known else (row["b_over_a"], row["b_over_a"])


def _ticks(reach: float) -> list[float]:
    """Round ratios within ``reach`` of 1 on both sides, in log-ratio, 1 among them."""
    steps = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 100.0)
    fitting = [step for step in steps if math.log(step) <= reach][-2:]
    return sorted([1.0, *fitting, *(round(1 / step, 3) for step in fitting)])


def _table(rows: pd.DataFrame) -> str:
    words = tables.formatted(comparison.for_people(rows))
    words = words.loc[:, (words != "").any()]
    head = "".join(f"<th>{escape(str(name))}</th>" for name in words.columns)
    body = "\n".join(
        f'<tr class="{row[0]}">' + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in words.itertuples(index=False, name=None)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"
