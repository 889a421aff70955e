"""Tables for people: golden at fixed widths; at every width no number is broken, and what is missing is named."""

import math
import re

import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from attn_tune.reports import layout, tables, terminal

FRAME = pd.DataFrame(
    {
        "point": ["llama3-8b/4x4k", "gpt-oss-20b.local/4x4k"],
        "config": ['{"block_q":128,"dq":{"block_k":64}}', "{}"],
        "median_ns": [1_234_567, None],
        "speedup": [1.5, None],
        "regret_bound": [0.0123, None],
        "worst_error": [0.5, math.inf],
        "samples": [24, 0],
    }
)
# The columns of every command's tables, with names as long as they come.
NAME = "gemma3-27b.local.window1024/4x131072"
TEXT = "refused: 4 stages of 128 x 128 tiles need 294912 bytes of shared memory, the device has 232448"
TABLES = {
    "report, sweep, best": {
        "point": [NAME, "cpu-smoke.llama3/1x128"],
        "direction": ["fwd", "bwd"],
        "device": "nvidia-h200",
        "kernel": ["triton_hopper", "pallas_tpu_splash_fused"],
        "deterministic": True,
        "config": [{"block_q": 128, "dq": {"block_k": 64, "num_stages": 4}, "dkv": {"block_q": 256}}, {}],
        "median_ns": [1_234_567, 999],
        "heuristic_ns": [2_345_678, None],
        "speedup": [1.9, None],
        "regret_bound": [0.012, math.nan],
        "worst_error": [0.5, math.inf],
        "features": [12, 0],
        "tflops": [512.3, 0.00647],
        "tb_s": [3.35, 0.0819],
        "bandwidth": [0.698, None],
        "rule": ["winner", "tie"],
    },
    "plan": {
        "point": [NAME, NAME],
        "direction": ["fwd", "bwd"],
        "kernel": ["flash_attention/pallas_tpu_splash_fused", "flash_attention/xla"],
        "configs": [12345, 16],
        "to try": [1234, 16],
        "tried": [0, 0],
        "refused": [11111, 0],
        "remark": [TEXT, ""],
    },
    "kernels": {
        "kernel": ["flash_attention/pallas_tpu_splash_fused", "paged_decode/triton"],
        "backend": ["pallas_tpu", "triton"],
        "direction": ["bwd", "fwd"],
        "deterministic": [True, False],
        "configs": ["dq: 123 of 456, dkv: 789 of 1011", "48"],
        "remark": [TEXT, f"{TEXT}; {TEXT}"],
    },
    "statuses": {
        "kernel": ["flash_attention/triton_hopper", "flash_attention/xla"],
        "direction": ["fwd", "bwd"],
        **{status: [12345, 6] for status in ("trials", "ok", "compile_error", "crashed", "out_of_resources")},
    },
    "failures": {
        "kernel": ["flash_attention/triton_hopper", "flash_attention/xla"],
        "direction": ["fwd", "bwd"],
        "status": ["out_of_resources", "incorrect"],
        "reason": [TEXT, "dk is wrong: error 0.0123, allowed 0.00456"],
        "trials": [123, 4],
    },
    "validate": {
        "kernel": ["flash_attention/triton_hopper", "flash_attention/xla"],
        "direction": ["fwd", "bwd"],
        "problem": ["sinks_window_softcap (t=128 s=256)", "ragged"],
        "status": ["out_of_resources", "ok"],
        "output": [None, "logsumexp"],
        "worst_error": [None, 0.123],
        "reason": [TEXT, ""],
    },
    "grids": {"grid": ["deepseek-v3"], "points": [12], "all lengths": [345], "summary": [TEXT]},
    "points of a grid": {"point": [NAME], "signature": ["flash_attention/v1 b=4 t=131072 s=131072 n=32 k=16 h=128"]},
    "misses": {
        "signature": ["flash_attention/v1 b=4 t=131072 s=131072 n=32 k=16 h=128 v=128 dtype=bfloat16 causal=1"],
        "direction": ["fwd"],
        "device": ["nvidia-h200"],
        "asked": [123456],
        "processes": [64],
        "last": ["2026-11-23 11:07"],
        "nearest": ["no rows of flash_attention.fwd for sm_90 (1234 packs)"],
    },
    "predicted": {
        "point": [NAME] * 2,
        "direction": ["fwd"] * 2,
        "device": ["tpu-v6e"] * 2,
        "kernel": ["flash_attention/pallas_tpu_splash"] * 2,
        "place": [1, 2],
        "predicted_ns": [1_234_567, 1_345_678],
        "low_ns": [1_034_567, 1_145_678],
        "high_ns": [2_234_567, 2_345_678],
        "gain_over_default": [1.2, 1.1],
        "gain_over_untuned": [None, None],
        "config": ['{"block_kv": 512, "block_kv_compute": 512, "block_q": 1024}', "{}"],
    },
    "coverage of a pack": {
        "reach": ["dead"],
        "kernel": ["flash_attention/triton_hopper"],
        "direction": ["fwd"],
        "signature": ["flash_attention/v1 b=4 t=131072"],
        "device": ["nvidia-h200"],
        "reason": [TEXT],
    },
    "device": {"field": ["variant", "digest"], "value": ["nvidia-h200", "b2:0123456789abcdef0123456789abcdef01234567"]},
    "none": {"point": [], "direction": [], "kernel": []},
}
WIDTHS = (40, 60, 80, 120)


def numbers(text):
    return re.findall(r"\d[\d.]*\d|\d", text)


def check(frame, width):
    """No line is too wide, no number is broken, and every column is there or named."""
    text = terminal.to_text(frame, title="A title of some length, on nvidia-h200", width=width)
    lines = text.splitlines()
    assert max(map(layout.text_width, lines)) <= width
    whole = set(numbers(terminal.to_text(frame, title="A title of some length, on nvidia-h200")))
    assert set(numbers(text)) <= whole, text
    squeezed = re.sub(r"\s", "", text)
    for header in tables.formatted(frame).columns:
        cells = {cell.strip() for cell in tables.formatted(frame)[header]}
        blank = not frame.empty and cells <= {"", tables.MISSING}
        assert blank or header == "device" or re.sub(r"\s", "", header) in squeezed or _split(header, text)
    return text


def _split(header, text):
    """Whether each word of a header that was folded onto several lines is there."""
    return all(word in text for word in header.split())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TABLES)
def test_every_table_fits_and_breaks_no_number(name, width):
    check(pd.DataFrame(TABLES[name]), width)


WORDS = st.text(alphabet="abc019./_= -é中", min_size=0, max_size=60)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(WORDS, WORDS, st.integers(0, 10**12)), min_size=1, max_size=4), st.integers(30, 120))
def test_any_words_fit_and_break_no_number(rows, width):
    frame = pd.DataFrame(rows, columns=["point", "remark", "trials"]).assign(reason="a b 12 " * 20)
    shortened = [words for row in rows for words in row[:2] if max(map(len, numbers(words)), default=0) > width // 2]
    if not shortened:  # a number that is wider than its room has to be broken
        check(frame, width)


GOLDEN = """\
Results

point                   config                        time  speedup  regret <=  error/allowed  samples
──────────────────────────────────────────────────────────────────────────────────────────────────────
llama3-8b/4x4k          block_q=128 dq.block_k=64  1.23 ms    1.50x      1.2 %           0.50       24
gpt-oss-20b.local/4x4k  no knobs                         -        -          -            inf        0
"""
AT_80 = """\
Results

point                   config                        time  speedup  regret <=
──────────────────────────────────────────────────────────────────────────────
llama3-8b/4x4k          block_q=128 dq.block_k=64  1.23 ms    1.50x      1.2 %
gpt-oss-20b.local/4x4k  no knobs                         -        -          -
not shown: error/allowed, samples (all of it: a wider terminal, or --json)
"""
AT_40 = """\
point          llama3-8b/4x4k
config         block_q=128 dq.block_k=64
time           1.23 ms
speedup        1.50x
regret <=      1.2 %
error/allowed  0.50
samples        24

point          gpt-oss-20b.local/4x4k
config         no knobs
time           -
speedup        -
regret <=      -
error/allowed  inf
samples        0
"""


@pytest.mark.parametrize("colour", ["", "1"])
def test_a_pipe_has_the_same_table_everywhere(monkeypatch, colour):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", colour)
    assert terminal.to_text(FRAME, title="Results") == GOLDEN


def test_lesser_columns_go_first_and_are_named_under_the_table():
    assert terminal.to_text(FRAME, title="Results", width=80) == AT_80


def test_a_narrow_terminal_has_one_record_a_block():
    assert terminal.to_text(FRAME, width=40) == AT_40


def test_words_fold_and_lose_nothing_while_three_lines_hold_them():
    frame = pd.DataFrame({"kernel": ["xla"] * 2, "config": ["a=1 b=22 c=333 d=4444 e=55555 f=666666"] * 2, "n": [1, 2]})
    frame = frame.assign(config=[dict(w.split("=") for w in c.split()) for c in frame["config"]])
    text = terminal.to_text(frame, width=50)
    assert "cut" not in text
    assert len(text.splitlines()) == 4
    assert "f=666666" in text


def test_words_of_more_than_three_lines_are_cut_and_named():
    frame = pd.DataFrame({"kernel": ["flash_attention/xla"], "remark": ["a forward for Hopper " * 9]})
    text = terminal.to_text(frame, width=60)
    assert "cut: remark (all of it: a wider terminal, or --json)" in text
    assert text.startswith("Kernels of flash_attention")
    assert text.count(layout.ELLIPSIS) == 1


def test_a_name_loses_its_beginning_and_no_digit_of_a_number():
    assert layout.shortened("cpu-smoke.llama3/1x128", 20) == "…-smoke.llama3/1x128"
    for width in range(4, 30):
        short = layout.shortened("gemma3-27b.local.window1024/4x131072", width)
        assert len(short) <= width
        assert set(numbers(short)) <= {"3", "27", "1024", "4", "131072"}


def test_what_all_rows_share_is_said_in_the_title():
    frame = pd.DataFrame({"point": ["a", "b"], "device": "nvidia-h200", "time": [1, 2]})
    assert terminal.to_text(frame, title="Winners").splitlines()[0] == "Winners, device nvidia-h200"
    assert terminal.to_text(frame).splitlines()[0] == "Device nvidia-h200"
    assert terminal.to_text(frame, title="Winners on nvidia-h200").splitlines()[0] == "Winners on nvidia-h200"
    assert "device" in terminal.to_text(frame.assign(device=["nvidia-h200", "tpu-v6e"]), title="Winners")


def test_kernels_of_one_op_lose_its_name_only_where_room_is_short():
    frame = pd.DataFrame({"kernel": ["flash_attention/xla", "flash_attention/triton"], "reason": ["a b " * 12, ""]})
    assert "flash_attention/xla" in terminal.to_text(frame, title="Failures", width=80)
    assert terminal.to_text(frame, title="Failures", width=60).splitlines()[0] == "Failures, kernels of flash_attention"
    mixed = frame.assign(kernel=["flash_attention/xla", "paged_decode/xla"])
    assert "paged_decode/xla" in terminal.to_text(mixed, title="Failures", width=60)


def test_rates_scale_with_their_units():
    text = terminal.to_text(pd.DataFrame({"point": "a", "tflops": [0.00647], "tb_s": [3.35], "bandwidth": [0.698]}))
    assert all(words in text for words in ("6.47 GFLOP/s", "3.35 TB/s", "69.8 %"))


def test_a_unit_stays_with_its_number():
    for width in WIDTHS:
        text = terminal.to_text(pd.DataFrame(TABLES["report, sweep, best"]), width=width)
        assert "1.23 ms" in text


def test_a_note_is_printed_for_each_column_of_the_table_also_for_one_without_room():
    frame = pd.DataFrame({"point": ["llama3-8b/4x4k"], "median_ns": [48_300], "rule": ["tie"], "worst_error": [0.5]})
    notes = {"rule": "tie: as fast as the untuned one.", "tflops": "compute: a column that is not there."}
    wide = terminal.to_text(frame, width=80, notes=notes)
    assert wide.endswith("tie: as fast as the untuned one.\n")
    assert "compute:" not in wide
    narrow = terminal.to_text(frame.assign(reason="x" * 33), width=60, notes=notes)
    assert "not shown: rule, error/allowed" in narrow
    assert narrow.endswith("tie: as fast as the untuned one.\n")
