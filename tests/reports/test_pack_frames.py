"""Tables about packs: what differs in a row, rows that do not answer, and numbers that stay whole when it is narrow."""

import re

import pytest

from attn_tune.reports.pack_frames import differences, uncovered
from attn_tune.reports.terminal import to_text

NAMES = {f"toy/v1 t={size}": f"toy.layer/{size}" for size in (1024, 16384, 65536, 131072)}


def difference(change, size, before, after, before_ns, after_ns):
    return {
        "change": change,
        "signature": f"toy/v1 t={size}",
        "direction": "fwd",
        "device": "nvidia-h200",
        "kernel": "kernel_of_a_long_name",
        "before": before,
        "before_ns": before_ns,
        "after": after,
        "after_ns": after_ns,
        "ratio": after_ns / before_ns if before_ns and after_ns else None,
    }


ROWS = [
    difference("added", 1024, "", "#0 block_kv=1024 block_q=512 winner", None, 1_234_567),
    difference(
        "changed", 16384, "#0 block_kv=1024 block_q=512 winner", "#1 block_kv=1024 block_q=64 tie", 1_000, 3_000
    ),
    difference("evidence", 65536, "#0 block_kv=512 winner", "#0 block_kv=512 winner", 10_000, 10_100),
]


def test_a_difference_of_packs_has_only_the_words_that_differ():
    assert differences(ROWS, NAMES)["row"].tolist() == [
        "#0 block_kv=1024 block_q=512 winner",
        "#0 block_q=512 winner -> #1 block_q=64 tie",
        "",
    ]


@pytest.mark.parametrize("width", [80, 60, 40, 30])
def test_tables_of_packs_keep_numbers_whole_at_any_width(width):
    dead = [
        {"reach": "dead", "kernel": "toy/slow", "direction": "fwd", "device": "nvidia-h200", "reason": reason, **row}
        for reason in ("16384 rows share keys of 65536", "another")
        for row in ({"signature": text} for text in NAMES)
    ]
    for frame in (differences(ROWS, NAMES), uncovered(dead, NAMES)):
        text = to_text(frame, width=width)
        assert max(map(len, text.splitlines())) <= width
        whole = {*re.findall(r"\d+", text)}
        known = {*re.findall(r"\d+", to_text(frame))}
        assert whole <= known, "a part of a number stands alone"
        # Columns may give way, but a block of lines has everything.
        assert whole == known or width >= 50


@pytest.mark.parametrize("width", [100, 80, 60, 50, 30])
def test_names_and_reasons_of_rows_that_do_not_answer_are_never_cut(width):
    names = {text: f"a-model-of-a-long-name.h128-causal/{index}x16k" for index, text in enumerate(NAMES)}
    reason = "neither a package_of_a_long_name nor lib.so.9 was found here, and what it needs is older than that"
    rows = [
        {"reach": "dead", "kernel": "toy/kernel_of_a_long_name", "direction": "fwd", "device": "gpu", "reason": reason}
        | {"signature": text}
        for text in NAMES
    ]
    text = to_text(uncovered(rows, names), width=width, whole=("kernel", "points", "reason"))
    assert "…" not in text
    assert "not shown" not in text
    assert max(map(len, text.splitlines())) <= width
    # A terminal narrower than a name breaks it over lines, in which nothing is left out either.
    whole = text if width > 50 else re.sub(r"\s", "", text)
    assert all(name in whole for name in (*list(names.values())[:3], "kernel_of_a_long_name"))


def test_rows_that_do_not_answer_are_one_for_each_reason():
    rows = [
        {
            "reach": "dead",
            "kernel": "toy/slow",
            "direction": "fwd",
            "device": "gpu",
            "reason": "gone",
            "signature": text,
        }
        for text in NAMES
    ]
    (one,) = uncovered([*rows], NAMES).to_dict("records")
    assert (one["rows"], one["points"]) == (4, "toy.layer/1024, toy.layer/16384, toy.layer/65536, ...")
