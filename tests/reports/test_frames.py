"""Frames: numbers of a report, from decisions and trials."""

import dataclasses

import pandas as pd
import pytest

from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.registry import get_op
from attn_tune.reports import frames, tables
from attn_tune.schema import Decision, Device, Environment, Rule, Signature
from tests.ops.known import more_kernels

DEVICE = Device(platform="cuda", family="sm_90", variant="nvidia-h200", units=132)
ENVIRONMENT = Environment(jax="0.12.0", jaxlib="0.12.0", source_hash=get_kernel("flash_attention/triton").source_hash)
PROBLEM = Problem(
    batch=4,
    q_len=4096,
    kv_len=4096,
    num_q_heads=16,
    num_kv_heads=16,
    head_dim=128,
    v_head_dim=128,
)


def decision(direction="fwd", problem=PROBLEM, **changes):
    values = {
        "op": "flash_attention",
        "direction": direction,
        "signature": problem.signature,
        "device": DEVICE,
        "environment": ENVIRONMENT,
        "kernel": "flash_attention/triton",
        "config": {"block_q": 128, "dq": {"block_k": 64}},
        "rule": Rule.WINNER,
        "median_ns": 1_000_000,
        "heuristic_ns": 1_500_000,
        "gain": 1.5,
        "regret_bound": 0.012,
        "worst_error": 0.5,
        "samples": 24,
        "trials": 100,
    }
    return Decision(**(values | changes))


def test_summary_names_points_and_counts_operations():
    frame = frames.summary([decision("bwd"), decision("fwd")], {PROBLEM.signature.text: "anchor/4x4k"})
    assert list(frame["direction"]) == ["fwd", "bwd"]
    assert set(frame["point"]) == {"anchor/4x4k"}
    # 4 B N T T H, and two and a half times that: the anchor's own arithmetic, in one millisecond.
    forward = 4 * 4 * 16 * 4096 * 4096 * 128 / 1e9
    assert frame["tflops"].tolist() == pytest.approx([forward, 2.5 * forward])


def test_summary_counts_bytes_and_their_share_of_the_bandwidth():
    (unknown,) = frames.summary([decision()]).itertuples()
    moved = get_op("flash_attention").bytes_moved(PROBLEM, "fwd")
    assert unknown.tb_s == pytest.approx(moved / 1e9)
    assert pd.isna(unknown.bandwidth)
    known = dataclasses.replace(DEVICE, bandwidth_gbs=4800)
    (row,) = frames.summary([decision(device=known)]).itertuples()
    assert row.bandwidth == pytest.approx(moved / 1e6 / 4800)
    assert tables.formatted(frames.summary([decision(device=known)]))["of peak"][0].endswith(" %")


def test_summary_keeps_what_is_missing_missing():
    frame = frames.summary([decision(median_ns=None, heuristic_ns=None, gain=None, rule=Rule.PREDICTED)])
    row = frame.iloc[0]
    assert pd.isna(row["tflops"])
    assert pd.isna(row["speedup"])
    assert row["point"] == PROBLEM.signature.text.removeprefix("flash_attention/v1 ")


def test_summary_of_nothing_has_its_columns():
    assert list(frames.summary([]).columns) == list(frames.SUMMARY)


def trials(*rows):
    return pd.DataFrame(rows, columns=["kernel", "direction", "status", "reason"])


TRIALS = trials(
    ("a", "fwd", "ok", ""),
    ("a", "fwd", "ok", ""),
    ("a", "fwd", "crashed", "signal 11\nstack"),
    ("a", "bwd", "incorrect", "dk: error 3 times what is allowed"),
    ("b", "fwd", "crashed", "signal 11\nother stack"),
    ("a", "fwd", "crashed", "signal 11\nthird stack"),
)


def test_status_counts_have_a_row_for_each_kernel_and_direction():
    frame = frames.status_counts(TRIALS)
    assert list(frame.columns) == ["kernel", "direction", "trials", "ok", "crashed", "incorrect"]
    assert frame.values.tolist() == [
        ["a", "bwd", 1, 0, 0, 1],
        ["a", "fwd", 4, 2, 2, 0],
        ["b", "fwd", 1, 0, 1, 0],
    ]
    assert frames.status_counts(TRIALS.iloc[:0]).empty


def test_failures_are_counted_by_their_first_line_commonest_first():
    frame = frames.failures(TRIALS)
    assert frame.values.tolist()[0] == ["a", "fwd", "crashed", "signal 11", 2]
    assert len(frame) == 3
    assert "ok" not in set(frame["status"])


def test_the_commonest_failure_is_of_the_commonest_status_and_no_refusal():
    trials = [
        *[{"status": "unsupported", "reason": "no window"}] * 5,
        *[{"status": "out_of_resources", "reason": "shared memory"}] * 2,
        *[{"status": "incorrect", "reason": f"out is wrong: error 0.{n}"} for n in (1, 2, 3)],
    ]
    failed = frames.failures(pd.DataFrame([{"kernel": "a", "direction": "fwd", **trial} for trial in trials]))
    most = frames.commonest_failure(failed)
    assert (most["status"], most["trials"], most["reason"]) == ("incorrect", 3, "out is wrong: error 0.1")
    refused = frames.commonest_failure(failed.loc[failed["status"] == "unsupported"])
    assert (refused["status"], refused["trials"]) == ("unsupported", 5)


def test_coverage_says_which_points_have_no_decision():
    wanted = {PROBLEM.signature.text: "seen", "flash_attention/v1 other": "unseen"}
    frame = frames.coverage([decision("fwd")], wanted, ("fwd", "bwd"))
    assert frame.values.tolist() == [
        ["seen", "nvidia-h200", True, False],
        ["unseen", "", False, False],
    ]
    open_one = dataclasses.replace(decision("fwd"), rule=Rule.SEARCH)
    assert frames.coverage([open_one], wanted, ("fwd",)).values.tolist()[0] == ["seen", "nvidia-h200", False]


def test_coverage_has_the_directions_of_each_op(monkeypatch):
    one_way = dataclasses.replace(get_op("attention"), name="one_way", directions=("fwd",))
    more_kernels(monkeypatch, ops=(one_way,))
    other = "one_way/v1 b=1"
    alone = frames.coverage([], {other: "own"})
    assert list(alone.columns) == ["point", "device", "fwd"]
    both = frames.coverage([decision("fwd")], {PROBLEM.signature.text: "seen", other: "own"})
    assert both.values.tolist() == [
        ["seen", "nvidia-h200", True, False],
        ["own", "", False, None],
    ]
    absent = frames.coverage([], {"not_installed/v1 b=1": "gone"})
    assert list(absent.columns) == ["point", "device"]


def test_points_without_a_name_keep_their_op_where_a_table_shows_two():
    other = dataclasses.replace(
        decision(), op="one_way", kernel="one_way/a", signature=Signature("one_way", 1, (("b", 1),))
    )
    assert list(frames.summary([decision()])["point"]) == [PROBLEM.signature.text.partition(" ")[2]]
    assert set(frames.summary([decision(), other])["point"]) == {
        PROBLEM.signature.text,
        "one_way/v1 b=1",
    }


def test_no_failure_is_left_out_of_the_frame_and_a_table_says_how_many_it_leaves_out():
    many = trials(*(("a", "fwd", "crashed", f"reason {n:03} " + "x" * 300) for n in range(25)))
    frame = frames.failures(many)
    assert len(frame) == 25
    assert all(len(reason) > 300 for reason in frame["reason"])
    short, rest = frames.shortened(frame)
    assert (len(short), rest) == (20, 5)
    assert all(len(r) == frames.REASON and r.endswith("...") for r in short["reason"])
    assert frames.shortened(frames.failures(TRIALS))[1] == 0


def test_words_of_a_decision_are_explained_where_they_occur():
    surely = frames.summary([decision()])
    assert frames.remarks(surely) == {}
    tie = frames.summary([decision(rule=Rule.TIE, regret_bound=0.585)], {PROBLEM.signature.text: "anchor/4x4k"})
    said = frames.remarks(tie)
    assert list(said) == ["rule", "regret_bound"]
    assert said["rule"].startswith("tie (anchor/4x4k fwd): no config is faster than the untuned one")
    without = frames.remarks(frames.summary([decision(rule=Rule.TIE, heuristic_ns=None, gain=None)]))
    assert "): the untuned config was not right, and this one is not faster than all others" in without["rule"]
    assert "1 row" in said["regret_bound"]
    assert "--no-resume" in said["regret_bound"]
    assert frames.remarks(frames.summary([decision(regret_bound=None)])) == {}


def test_remarks_name_their_rows_among_others():
    names = {PROBLEM.signature.text: "anchor/4x4k"}
    others = [decision("bwd", rule=Rule.SEARCH), decision(rule=Rule.TIE)]
    first, second = frames.remarks(frames.summary(others, names))["rule"].splitlines()
    assert first.startswith("tie (anchor/4x4k fwd): no config")
    assert second.startswith("search (anchor/4x4k bwd): its case")
    kernels = [decision(rule=Rule.TIE, kernel=f"flash_attention/k{n}", rank=n) for n in range(6)]
    said = frames.remarks(frames.summary(kernels, names))["rule"]
    assert said.startswith("tie (anchor/4x4k fwd k0, anchor/4x4k fwd k1, ")
    assert " and 2 more): " in said


def test_an_op_that_is_not_installed_has_no_flops():
    foreign = Signature("decode", 1, (("b", 1), ("pages", 4)))
    frame = frames.summary([decision(op="decode", signature=foreign, kernel="decode/splitk")])
    assert pd.isna(frame["tflops"][0])
    assert frame["kernel"].tolist() == ["splitk"]


def test_a_config_whose_bits_were_seen_to_differ_is_not_deterministic():
    found = [decision(repeatable=value, features=3) for value in (None, True, False)]
    frame = frames.summary(found)
    assert frame["deterministic"].tolist() == [True, True, False]
    assert frame["features"].tolist() == [3, 3, 3]


def test_a_count_of_feature_problems_stays_whole_where_another_row_has_none():
    frame = frames.summary([decision(features=5), decision("bwd")])
    words = tables.formatted(frame)["features"].tolist()
    assert words == ["5", "-"]
    assert '"features":5,' in frame.to_json(orient="records")
