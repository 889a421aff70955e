"""Failures: what failed, how often, and the text of the first error."""

from typing import Any

import pandas as pd

from attn_tune.reports.page import draw
from attn_tune.reports.page.data import PageData, fitting, how_many
from attn_tune.reports.page.markup import Markup, details, element, table
from attn_tune.reports.page.scales import Scale
from attn_tune.reports.page.statuses import FAILURES, hatch
from attn_tune.schema import Status
from attn_tune.schema.words import counted

TITLE = "What failed, and why?"
BUDGET = 12_000
LONGEST = 600
HEIGHT = 18


def part(data: PageData) -> list[Markup]:
    """The classes of failures with their first error, then the reasons by kernel."""
    failed = data.trials.loc[data.trials["status"].isin([str(s) for s in FAILURES])]
    refused = how_many(data.trials["status"].isin([str(s) for s in Status if s.is_refused]))
    total, tried = len(data.trials), how_many(data.trials["status"].isin([str(s) for s in Status if s.was_tried]))
    counts = f"{tried} tried, of which {len(failed)} failed; {refused} refused before they ran"
    words = f"{counted(total, 'trial')}: {counts}."
    if failed.empty:
        return [element("p", words, class_="lead")]
    counts = failed["status"].value_counts().to_dict()
    scale = Scale(0.0, float(max(counts.values())))
    order = sorted(counts, key=lambda status: (-counts[status], status))
    items = [_row(failed.loc[failed["status"] == status], Status(status), scale, total) for status in order]
    return [element("p", words, class_="lead"), draw.rows(None, items, "failures by class"), _by_kernel(data, failed)]


def _row(group: pd.DataFrame, status: Status, scale: Scale, total: int) -> Markup:
    _, name, _ = FAILURES[status]
    first = group.iloc[0]
    reason = str(first["reason"]).strip()
    cut = reason if len(reason) <= LONGEST else f"{reason[:LONGEST]} …"
    head = Markup(element("b", name) + element("span", f"first: {first['kernel']} {first['direction']}", class_="sub"))
    end = scale.at(len(group))
    bar = draw.box(0, 2, end, HEIGHT - 4, class_="h-fail", fill=hatch(status))
    track = draw.svg(bar, height=HEIGHT, label=f"{len(group)} of {total}", class_="track")
    value = Markup(
        element("b", len(group)) + element("span", f"{100 * len(group) / total:.1f} % of trials", class_="sub")
    )
    text = element("pre", cut, tabindex="0")
    return Markup(draw.row(head, track, value) + element("li", text, class_="error"))


def _by_kernel(data: PageData, failed: pd.DataFrame) -> Markup:
    keys = ["kernel", "direction", "status", "reason"]
    lines = failed[keys].assign(reason=[str(r).strip().split("\n")[0][:200] for r in failed["reason"]])
    groups = lines.value_counts(keys).reset_index(name="trials")
    groups = groups.sort_values(["trials", *keys], ascending=[False, *[True] * len(keys)], kind="stable")
    rows, rest = fitting(groups.itertuples(index=False), _line, data.budget(BUDGET))
    data.left_out["reasons of failures"] = rest
    made = table(["kernel", "direction", "class", "trials", "reason"], rows, numeric=[3])
    return details(f"{counted(len(groups), 'reason')} by kernel", made)


def _line(row: Any) -> Markup:
    cells = (row.kernel, row.direction, FAILURES[Status(row.status)][1], row.trials, row.reason)
    return element("tr", *(element("td", c, class_="n" if place == 3 else None) for place, c in enumerate(cells)))
