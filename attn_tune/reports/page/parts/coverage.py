"""Coverage: which problems have a proven config, on which device, in which direction."""

from collections import Counter
from typing import Any

import pandas as pd

from attn_tune.reports.page.coverage_cells import State
from attn_tune.reports.page.data import PageData, fitting, rows_of
from attn_tune.reports.page.markup import Markup, breakable, details, element
from attn_tune.schema.words import counted

TITLE = "Which problems are tuned?"
BUDGET = 36_000
# By state: the sign in a cell, and the legend.
_SIGNS = {
    State.MEASURED: ("●", "measured and proven"),
    State.IMPORTED: ("◆", "from an imported pack"),
    State.PREDICTED: ("◐", "predicted, not run"),
    State.NEIGHBOUR: ("↷", "answered by a neighbour"),
    State.UNDECIDED: ("◔", "measured, not decided"),
    State.UNTUNED: ("○", "untuned: nothing stored answers"),
    State.FAILED: ("✕", "all that was tried failed"),
    State.REFUSED: ("⊘", "every kernel refuses"),
}


def part(data: PageData) -> list[Markup]:
    """The matrix, its legend and the reasons of refusals."""
    cells = data.cells
    if cells.empty:
        return [element("p", "Nothing is stored and nothing was asked for.", class_="none")]
    columns = _columns(cells)
    by_key = {(r.signature, r.direction, r.device): r for r in rows_of(cells)}
    texts = [text for text in data.signatures if text in set(cells["signature"])]
    lines, rest = fitting(texts, lambda text: _line(data, text, columns, by_key), data.budget(BUDGET))
    data.left_out["problems of the coverage matrix"] = rest
    counts = Counter(cells["state"])
    parts = [_legend(counts), _table(data, columns, lines)]
    reasons = cells.loc[cells["state"].isin([State.REFUSED, State.FAILED, State.NEIGHBOUR])]
    if len(reasons):
        parts.append(_reasons(data, reasons))
    return parts


def _columns(cells: pd.DataFrame) -> list[tuple[str, str]]:
    """(device, direction) in the order of devices, directions in the order of their ops."""
    directions = list(dict.fromkeys(cells["direction"]))
    pairs = set(zip(cells["device"], cells["direction"], strict=True))
    return [(device, way) for device in sorted(set(cells["device"])) for way in directions if (device, way) in pairs]


def _legend(counts: Counter) -> Markup:
    keys = [
        element(
            "span",
            element("span", sign, class_=f"sign c-{state}"),
            f" {words} ",
            element("b", counts[state]),
            class_="key",
        )
        for state, (sign, words) in _SIGNS.items()
        if counts[state]
    ]
    return element("p", *keys, class_="legend")


def _table(data: PageData, columns: list[tuple[str, str]], lines: list[Markup]) -> Markup:
    spans = Counter(device for device, _ in columns)
    top = [
        element("th", device, colspan=count, scope="colgroup", class_="c", **data.marks(device=device))
        for device, count in spans.items()
    ]
    ways = [element("th", way, scope="col", class_="c", **data.marks(device=device)) for device, way in columns]
    head = element("thead", element("tr", element("th", "problem", rowspan=2, scope="col"), *top), element("tr", *ways))
    made = element("table", head, element("tbody", *lines), class_="matrix")
    return element("div", made, class_="wide", tabindex="0", role="region", aria_label="coverage matrix")


def _line(data: PageData, text: str, columns: list[tuple[str, str]], by_key: dict[Any, Any]) -> Markup:
    name = data.name(text)
    head = element("th", breakable(name), scope="row", title=text if text != name else None)
    boxes = [_cell(data, by_key.get((text, way, device)), device) for device, way in columns]
    return element("tr", head, *boxes, **data.marks(signature=text))


def _cell(data: PageData, cell: Any, device: str) -> Markup:
    marks = data.marks(device=device)
    if cell is None:
        return element("td", class_="c", **marks)
    state = State(cell.state)
    kernel = cell.kernel.rpartition("/")[2]
    words = ": ".join(
        filter(None, [str(state), " ".join(filter(None, [kernel, f"({cell.note})" if kernel else cell.note]))])
    )
    gain = f"{cell.gain:.2f}×" if state is State.MEASURED and pd.notna(cell.gain) else ""
    sign = element("span", _SIGNS[state][0], role="img", aria_label=str(state))
    return element("td", sign, element("small", gain) if gain else None, class_=f"c c-{state}", title=words, **marks)


def _reasons(data: PageData, rows: pd.DataFrame) -> Markup:
    made, rest = fitting(rows_of(rows), lambda row: _reason(data, row), data.budget(BUDGET // 6))
    more = element("li", f"and {rest} more") if rest else None
    return details(f"Reasons of {counted(len(rows), 'cell')}", element("ul", *made, more, class_="reasons"))


def _reason(data: PageData, row: Any) -> Markup:
    words = f" {row.direction} · {row.device} · {row.state}: {row.note}"
    marks = data.marks(signature=row.signature, device=row.device)
    return element("li", element("b", breakable(data.name(row.signature))), words, **marks)
