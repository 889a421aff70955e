"""Tables: golden at a fixed width, without colour, on any terminal."""

import csv
import io
import json
import math

import pandas as pd
import pytest

from attn_tune.reports import tables
from attn_tune.schema.words import config_words, counted, duration, rate

FRAME = pd.DataFrame(
    {
        "point": ["llama3-8b/4x4k", "gpt-oss-20b.local/4x4k"],
        "config": [
            '{"block_q":128,"dq":{"block_k":64}}',
            "{}",
        ],
        "median_ns": [1_234_567, None],
        "speedup": [1.5, None],
        "regret_bound": [0.0123, None],
        "worst_error": [0.5, math.inf],
        "samples": [24, 0],
    }
)


def test_markdown_golden():
    frame = FRAME.assign(point=["a|b", "c"])
    assert tables.to_markdown(frame) == (
        "| point | config | time | speedup | regret &lt;= | error/allowed | samples |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n"
        "| a\\|b | block_q=128 dq.block_k=64 | 1.23 ms | 1.50x | 1.2 % | 0.50 | 24 |\n"
        "| c | no knobs | - | - | - | inf | 0 |\n"
    )


def test_markdown_shows_hostile_words_as_they_are():
    words = "<img src=http://evil.test/x> &amp; `a` [b](c) *d* _e_ f_g ~h~ www.i\\j\nk\x1b[31m\u202e"
    *_, row = tables.to_markdown(pd.DataFrame({words: [words]})).splitlines()
    assert row == (
        "| &lt;img src=http:&#47;&#47;evil.test/x&gt; &amp;amp; \\`a\\` \\[b\\](c) \\*d\\* \\_e\\_ f_g \\~h\\~ "
        "www&#46;i\\\\j k\\\\x1b\\[31m\\\\u202e |"
    )
    assert tables.to_markdown(pd.DataFrame({words: []})).splitlines()[0] == row


def test_csv_has_no_control_character_and_keeps_every_value():
    frame = pd.DataFrame({"a\x1b": ["x\ry\x00", None, 1], "b": [1.5, None, 2.0]}, dtype=object)
    assert tables.to_csv(frame) == "a\\x1b,b\nx\\ry\\x00,1.5\n,\n1,2.0\n"


def test_csv_keeps_names_and_digits():
    rows = list(csv.DictReader(io.StringIO(tables.to_csv(FRAME))))
    assert rows[0]["median_ns"] == "1234567.0"
    assert rows[0]["regret_bound"] == "0.0123"
    assert rows[1]["speedup"] == ""


def test_records_are_json_without_nan():
    rows = tables.to_records(FRAME)
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    assert rows[0]["config"] == {"block_q": 128, "dq": {"block_k": 64}}
    assert rows[1]["median_ns"] is None
    assert rows[1]["worst_error"] == "inf"


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (1, "1 ns"),
        (812, "812 ns"),
        (999.4, "999 ns"),
        (999.6, "1.00 us"),
        (9_996, "10.0 us"),
        (48_320, "48.3 us"),
        (999_400, "999 us"),
        (1_250_000, "1.25 ms"),
        (61e9, "61.0 s"),
        (1234e9, "1234 s"),
    ],
)
def test_durations_have_three_digits_and_a_unit(nanoseconds, text):
    assert duration(nanoseconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12, "12.0 B/s"),
        (6_470_000_000, "6.47 GB/s"),
        (819e9, "819 GB/s"),
        (999.6e9, "1.00 TB/s"),
        (3.35e12, "3.35 TB/s"),
        (1.2e15, "1.20 PB/s"),
    ],
)
def test_rates_have_three_digits_a_prefix_and_a_unit(value, text):
    assert rate(value, "B/s") == text


def test_configs_and_counts_in_words():
    assert config_words({"block_q": 64, "dq": {"block_k": 32}}) == "block_q=64 dq.block_k=32"
    assert config_words({"rows": 1, "columns": 2}) == "columns=2 rows=1"
    assert config_words({}) == "no knobs"
    assert (counted(0, "row"), counted(1, "row"), counted(2, "row")) == (
        "0 rows",
        "1 row",
        "2 rows",
    )
    assert (counted(1, "entry", "entries"), counted(2, "entry", "entries")) == ("1 entry", "2 entries")


def test_configs_may_be_given_as_text_or_as_data():
    for config in ('{"block_q": 64}', {"block_q": 64}):
        frame = pd.DataFrame([{"config": config}])
        assert tables.formatted(frame)["config"].tolist() == ["block_q=64"]
        assert tables.to_records(frame) == [{"config": {"block_q": 64}}]
