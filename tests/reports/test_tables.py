"""Tables: golden at a fixed width, without colour, on any terminal."""

import csv
import io
import json
import math

import pandas as pd
import pytest

from attn_tune.reports import tables
from attn_tune.schema.words import config_words, counted, duration

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

GOLDEN = """\
Results

 point                    config                         time   speedup   regret <=   error/allowed   samples
 ────────────────────────────────────────────────────────────────────────────────────────────────────────────
 llama3-8b/4x4k           block_q=128 dq.block_k=64   1.23 ms     1.50x       1.2 %            0.50        24
 gpt-oss-20b.local/4x4k   default                           -         -           -             inf         0
"""


@pytest.mark.parametrize("colour", ["", "1"])
def test_table_is_the_same_on_every_terminal(monkeypatch, colour):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", colour)
    assert tables.to_text(FRAME, title="Results") == GOLDEN


def test_a_narrow_table_folds_and_loses_nothing():
    text = tables.to_text(FRAME[["point", "config"]], width=30)
    assert max(map(len, text.splitlines())) <= 30
    squeezed = "".join(text.split())
    assert "gpt-oss" in squeezed
    assert "dq." in squeezed


def test_markdown_golden():
    frame = FRAME.assign(point=["a|b", "c"])
    assert tables.to_markdown(frame) == (
        "| point | config | time | speedup | regret <= | error/allowed | samples |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n"
        "| a\\|b | block_q=128 dq.block_k=64 | 1.23 ms | 1.50x | 1.2 % | 0.50 | 24 |\n"
        "| c | default | - | - | - | inf | 0 |\n"
    )


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


def test_configs_and_counts_in_words():
    assert config_words({"block_q": 64, "dq": {"block_k": 32}}) == "block_q=64 dq.block_k=32"
    assert config_words({"rows": 1, "columns": 2}) == "columns=2 rows=1"
    assert config_words({}) == "default"
    assert (counted(0, "row"), counted(1, "row"), counted(2, "row")) == (
        "0 rows",
        "1 row",
        "2 rows",
    )


def test_configs_may_be_given_as_text_or_as_data():
    for config in ('{"block_q": 64}', {"block_q": 64}):
        frame = pd.DataFrame([{"config": config}])
        assert tables.formatted(frame)["config"].tolist() == ["block_q=64"]
        assert tables.to_records(frame) == [{"config": {"block_q": 64}}]


WIDE = FRAME.assign(device="nvidia-h200", deterministic=True, heuristic_ns=2_345_678, tflops=0.3, direction="fwd")


def test_at_80_columns_numbers_stay_on_one_line_and_lesser_columns_go():
    shown = tables.fit(WIDE, 80)
    text = tables.to_text(shown, width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "1.23 ms" in text
    assert "1.50x" in text
    assert "deterministic" not in shown.columns
    assert {"point", "config", "median_ns", "speedup"} <= set(shown.columns)


def test_the_count_of_feature_problems_is_the_first_column_to_go():
    frame = WIDE.assign(features=7)
    shown = tables.fit(frame, tables.least_width(frame) - 1)
    assert set(frame.columns) - set(shown.columns) == {"features"}


def test_a_wide_terminal_shows_every_column():
    assert list(tables.fit(WIDE, 300).columns) == list(WIDE.columns)


def test_a_terminal_too_narrow_for_the_rest_cuts_nothing_off():
    shown = tables.fit(WIDE, 20)
    width = tables.least_width(shown)
    assert width > 20
    text = tables.to_text(shown, width=width)
    assert all(cell in text for cell in ("1.23 ms", "1.50x", "fwd", "direction"))


def test_names_are_not_broken_where_text_can_fold():
    kernels = pd.DataFrame({"kernel": ["flash_attention/triton_hopper"], "remark": ["a forward for Hopper " * 4]})
    text = tables.to_text(kernels, width=60)
    assert "flash_attention/triton_hopper" in text
    assert max(map(len, text.splitlines())) <= 60
