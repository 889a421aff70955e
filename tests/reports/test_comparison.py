"""Comparisons as Markdown and as a page: golden text, equal bytes, nothing loaded, nothing unescaped."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from attn_tune.reports import comparison
from attn_tune.reports.comparison_page import page

NAMES = {"toy/v1 t=1": "toy/1", "toy/v1 t=2": "toy/2|<b>", "toy/v1 t=3": "toy/3"}
SUMMARY = {
    "a": {"name": "old.db", "kind": "database"},
    "b": {"name": "new.db", "kind": "database"},
    "rule": {"margin": 0.01, "margin_ns": 500, "level": 0.01, "correction": "holm", "confidence": 0.95},
    "counts": {"worse": 1, "better": 1, "undecided": 1, "only_a": 1, "only_b": 0},
    "changed": {"kernel": 1, "config": 2},
    "mean": 1.0012,
    "shifts": [{"device": "gpu", "programs": 12, "ratio": 1.0031, "noise": 0.0144, "is_known": True}],
}
GOLDEN = """\
### old.db -&gt; new.db: 1 worse, 1 better, 1 undecided, 1 only in A

B takes 1.001 times A's time (geometric mean of the problems in both).

B chose another kernel for 1 problem and another config for 2 problems.

gpu: 12 programs with one config, software and source in both took 1.003 times A's time in B (median); a verdict needs \
more than 1.4 %.

| verdict | point | direction | device | A | B | B/A | 95 % | change |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| worse | toy/1 | fwd | gpu | 100 us | 120 us | 1.200 | 1.100 to 1.300 | rows 8 -&gt; 16, split.by 1 -&gt; - |
| better | toy/2\\|&lt;b&gt; | bwd | gpu | 100 us | 80.0 us | 0.800 | 0.700 to 0.900 | slow -&gt; fast |

<details><summary>1 undecided</summary>

| point | direction | device | A | B | B/A | 95 % | change | basis | reason |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
| toy/3 | fwd | gpu | 100 us | 100 us | 1.000 |  |  | medians | within 2.0 % |

</details>

<details><summary>1 in one alone</summary>

| verdict | point | direction | device | A | B | choice |
| --- | --- | --- | --- | --- | --- | --- |
| only in A | toy/v1 t=4 | fwd | gpu | 100 us | - | slow rows=8 |

</details>
"""


def row(verdict, t, a_ns=100_000, b_ns=100_000, **changes):
    alone = verdict == "only_a"
    return {
        "verdict": verdict,
        "op": "toy",
        "signature": f"toy/v1 t={t}",
        "direction": "fwd",
        "device": "gpu",
        "a_ns": a_ns,
        "b_ns": None if alone else b_ns,
        "b_over_a": None if alone else b_ns / a_ns,
        "low": None,
        "high": None,
        "chance": None,
        "basis": "" if alone else "medians",
        "changed": "",
        "reason": "",
        "needs": "",
        "bound": None if alone else 0.02,
        "a_kernel": "toy/slow",
        "a_config": '{"rows":8}',
        "b_kernel": None if alone else "toy/slow",
        "b_config": None if alone else '{"rows":8}',
        **changes,
    }


@pytest.fixture
def frame():
    rows = [
        row(
            "worse", 1, b_ns=120_000, low=1.1, high=1.3, a_config='{"rows":8,"split":{"by":1}}', b_config='{"rows":16}'
        ),
        row("better", 2, b_ns=80_000, low=0.7, high=0.9, b_kernel="toy/fast", direction="bwd"),
        row("undecided", 3, reason="within 2.0 %"),
        row("only_a", 4),
    ]
    return comparison.frame(rows, NAMES)


def test_markdown_has_the_verdicts_and_folds_the_rest(frame):
    assert comparison.markdown(frame, SUMMARY) == GOLDEN


def test_a_comparison_without_verdicts_has_no_table_of_them(frame):
    text = comparison.markdown(
        frame.loc[frame["verdict"] == "undecided"], SUMMARY | {"mean": None, "shifts": [], "changed": {}}
    )
    _, apart, folded, *_ = text.split("\n\n")
    assert apart.startswith("no program is the same in both")
    assert folded.startswith("<details><summary>1 undecided")


def test_the_page_is_the_same_twice_and_loads_nothing(frame):
    text = page(frame, SUMMARY)
    assert text == page(frame, SUMMARY)
    assert not re.search(r"<script|https?://|src=|@import|url\(", text)
    assert "prefers-color-scheme:dark" in text
    assert len(text) < 30_000


def test_the_page_draws_an_interval_for_each_ratio_and_escapes_names(frame):
    text = page(frame, SUMMARY)
    assert "toy/2|<b>" not in text
    drawings = [ElementTree.fromstring(svg) for svg in re.findall(r'<div class="lane">(.*?)</div>', text, re.DOTALL)]
    drawings = [drawing for drawing in drawings if drawing.find("svg/path") is not None]
    assert re.findall(r'<li class="row (worse|better|undecided)"', text) == ["worse", "better", "undecided"]

    def share(shape, name):
        return float(shape.get(name).removesuffix("%"))

    places = [share(drawing.find("svg"), "x") for drawing in drawings]
    assert places[1] < places[2] < places[0], "less time is to the left"
    interval, *ends = (line for line in drawings[0].iter("line") if line.get("class") == "whisker")
    assert share(interval, "x1") < places[0] < share(interval, "x2")
    assert len(ends) == 2
    (band,) = (box for box in drawings[0].iter("rect") if box.get("class") == "band")
    assert share(band, "x") < 50 < share(band, "x") + share(band, "width") < places[0], "worse by more than the bound"
    assert all(drawing.get("width") == "100%" for drawing in drawings), "as wide as its place, however narrow that is"
    assert "toy/3" in text
    assert "toy/<wbr/>1 fwd" in text, "a narrow screen breaks a name here, not within its numbers"
    assert "only in A" in text


def test_a_page_without_verdicts_shows_the_pairs_and_what_would_decide_them():
    needs = "B above 101 us or below 99.0 us; less is no difference"
    rows = [row("undecided", t, reason="within 1.0 %", needs=needs, low=0.995, high=1.004) for t in (1, 2)]
    rows.append(row("undecided", 3, reason="too few samples: 3", needs="8 samples a side: sweep both again"))
    text = page(comparison.frame(rows, NAMES), SUMMARY)
    assert "No problem is faster or slower beyond noise." in text
    assert "2 within 1.0 %; 1 too few samples: 3." in text
    assert "<details open" in text
    assert text.count("0.995 to 1.004; within 1.0\N{NO-BREAK SPACE}%") == 2
    assert text.count(needs) == 2
    assert "8 samples a side" in text
