"""``serving_torch_peers.py`` without torch and without a GPU: cases, checked rows, device time, the joined table."""

import json
from pathlib import Path

import numpy as np
import pytest
import serving_cases
import serving_join
import serving_reference
import serving_torch_peers
import torch_busy

from attn_tune.schema.errors import AttnTuneError, UsageError
from attn_tune.tuner.work.timers.records import Record, split_records

FLUSH = torch_busy.Span("flush", 0, 50)


def _report(point, us, errors=None, device="NVIDIA H200"):
    row = {"point": point, "us": us, "error_ratio": dict.fromkeys(us, 0.5) | (errors or {}), "cannot": {}}
    return {"versions": {"device": device}, "rows": [row]}


def _joined(*reports):
    table, _, summary = serving_join.markdown(reports).partition("\n\n")
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return [dict(zip(head, row, strict=True)) for row in rows], summary


def test_join_takes_the_fastest_right_peer_over_pages():
    ours = _report("a", {"auto": 10.0, "xla": 1.0, "cudnn_paged": 15.0, "cudnn_contiguous": 2.0, "read": 1.0})
    theirs = _report("a", {"flashinfer": 12.0, "flashinfer_fa3": 5.0}, {"flashinfer_fa3": 1.5})
    (row,), summary = _joined(ours, theirs)
    assert row["best peer"] == "flashinfer"
    assert row["speed"] == "1.20"
    assert row["flashinfer_fa3"] == "5.00 wrong"
    assert row["cudnn_contiguous"] == "2.00"
    assert not {"xla", "read"} & set(row)
    assert "1.20 times" in summary


def test_join_averages_speeds_geometrically_over_points_of_both_files():
    ours = _report("a", {"auto": 10.0}), _report("b", {"cascade": 10.0, "whole": 1.0}), _report("c", {"auto": 1.0})
    theirs = _report("a", {"flashinfer": 40.0}), _report("b", {"flashinfer": 2.5}), _report("d", {"flashinfer": 1.0})
    rows, summary = _joined(*ours, *theirs)
    assert [row["speed"] for row in rows] == ["4.00", "0.25"]
    assert "1.00 times" in summary
    assert "2 rows, 0.25 to 4.00" in summary


def test_recorded_peers_are_right_and_cudnn_takes_as_long_in_both_processes():
    records = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "h200"
    serving, ragged, theirs = (
        {row["point"]: row for row in json.loads((records / name).read_text())["rows"]}
        for name in ("serving.json", "ragged.json", "serving_torch.json")
    )
    assert all(ratio <= 1 for row in theirs.values() for ratio in row["error_ratio"].values())
    ours = {
        point: row["us"]["cudnn_contiguous"]
        for point, row in (serving | ragged).items()
        if row["us"].get("cudnn_contiguous")
    }
    common = [point for point, row in theirs.items() if point in ours and "sdpa_cudnn_contiguous" in row["us"]]
    assert len(common) >= 2
    for point in common:
        # The same library measured by two processes: a timer that counts anything else shows here.
        assert 0.95 < theirs[point]["us"]["sdpa_cudnn_contiguous"] / ours[point] < 1.05


def test_join_makes_a_table_for_each_grid_with_the_peers_of_its_own():
    ours = _report("x.a/1", {"auto": 10.0}), _report("y.a/1", {"auto": 10.0, "scatter": 30.0})
    theirs = _report("x.a/1", {"flashinfer": 20.0}), _report("y.a/1", {"index_put": 40.0})
    text = serving_join.markdown([*ours, *theirs])
    assert "| x | ours, us | flashinfer | best peer | speed |" in text
    assert "| y | ours, us | scatter | index_put | best peer | speed |" in text
    assert "| a/1 | 10.00 | 30.00 | 40.00 | scatter | 3.00 |" in text


def test_join_leaves_a_point_without_a_right_peer_out_of_the_mean():
    wrong = _report("a", {"flashinfer": 5.0}, {"flashinfer": float("inf")})
    (row,), summary = _joined(_report("a", {"auto": 10.0}), wrong)
    assert row["best peer"] == row["speed"] == ""
    assert not summary


def test_join_refuses_files_of_two_devices_and_files_without_a_common_point():
    ours = _report("a", {"auto": 10.0})
    with pytest.raises(UsageError, match="different devices: NVIDIA H100, NVIDIA H200"):
        serving_join.markdown([ours, _report("a", {"flashinfer": 5.0}, device="NVIDIA H100")])
    with pytest.raises(UsageError, match="no point"):
        serving_join.markdown([ours, _report("b", {"flashinfer": 5.0})])


def test_command_joins_files(tmp_path, capsys):
    paths = [tmp_path / "ours.json", tmp_path / "theirs.json"]
    for path, us in zip(paths, ({"auto": 10.0}, {"flashinfer": 15.0}), strict=True):
        path.write_text(json.dumps(_report("a", us)))
    assert serving_torch_peers.main(["--join", *map(str, paths)]) == 0
    assert "| flashinfer | 1.50 |" in capsys.readouterr().out


def test_command_names_a_file_that_is_not_there_and_a_cascade_of_another_form(tmp_path, capsys, monkeypatch):
    # The script sets it for its own process.
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    for arguments, said in (["--join", tmp_path / "no.json"], "no.json"), (["--cascade", "many", "--out", "x"], "many"):
        with pytest.raises(SystemExit, match="2"):
            serving_torch_peers.main(list(map(str, arguments)))
        assert said in capsys.readouterr().err


def test_busy_time_counts_overlapping_kernels_once_and_no_gaps():
    spans = [torch_busy.Span("a", 0, 10), torch_busy.Span("b", 8, 4), torch_busy.Span("c", 9, 1)]
    assert torch_busy.busy_us([torch_busy.Span("late", 20, 3), *spans]) == 15


def test_busy_time_is_that_of_our_own_timer_where_no_kernels_overlap():
    spans = [torch_busy.Span("a", 0, 10), torch_busy.Span("b", 11, 4)]
    (ns,) = split_records([Record(span.name, round(span.took * 1000)) for span in spans], [["a", "b"]], [])
    assert torch_busy.busy_us(spans) * 1000 == ns


def test_split_gives_each_call_the_kernels_between_flushes():
    a, b, c = (torch_busy.Span(name, at, 1) for name, at in (("a", 60), ("b", 70), ("c", 170)))
    second = FLUSH._replace(begin=100.0)
    assert torch_busy.split([c, second, b, a, FLUSH], "flush", 2) == [[a, b], [c]]


@pytest.mark.parametrize("spans", [[FLUSH], [FLUSH, torch_busy.Span("a", 60, 1), FLUSH._replace(begin=70)], []])
def test_split_refuses_a_call_without_kernels(spans):
    with pytest.raises(AttnTuneError, match="flushes"):
        torch_busy.split(spans, "flush", 1)


def test_kernels_of_a_trace_leave_copies_and_the_host_out():
    events = [
        {"cat": "kernel", "name": "decode", "ts": 5.5, "dur": 2.25, "ph": "X"},
        {"cat": "gpu_memset", "name": "Memset", "ts": 5.0, "dur": 1.0, "ph": "X"},
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1.0, "dur": 3.0, "ph": "X"},
        {"name": "process_name", "ph": "M"},
    ]
    assert torch_busy.kernel_spans({"traceEvents": events}) == [torch_busy.Span("decode", 5.5, 2.25)]


def test_csr_has_the_pages_that_hold_tokens():
    table = np.array([[7, 3, -1], [2, 9, 4]])
    ends, pages, last = serving_cases.csr(table, np.array([17, 48]), 16)
    assert ends.tolist() == [0, 2, 5]
    assert pages.tolist() == [7, 3, 2, 9, 4]
    assert last.tolist() == [1, 16]


def test_cases_of_a_grid_have_the_lengths_and_pages_of_our_own_inputs():
    from attn_tune.ops.paged_append.inputs import make_inputs

    (case,) = serving_cases.grid_cases("llama3-8b-append", ["page64/32x32"])
    operands = make_inputs(case.problem, "fwd", 0)
    assert case.kind == "paged_append"
    assert case.lengths.tolist() == operands.kv_lens.tolist()
    assert case.table.tolist() == operands.page_table.tolist()
    assert case.new.tolist() == [1] * 32
    assert case.pages == operands.k.shape[0]
    assert not case.lacks


def test_ragged_cases_have_the_new_tokens_of_each_sequence():
    (case,) = serving_cases.grid_cases("llama3-8b-ragged", ["mixed/4x8kx2k"])
    assert sorted(case.new) == sorted(new for new, _ in case.problem.sequences)
    assert (case.lengths >= case.new).all()


def test_a_case_with_codes_is_named():
    (case,) = serving_cases.grid_cases("llama3-8b-append", ["float8/32x32"])
    assert case.lacks == "not with codes"


def test_a_cascade_shares_whole_pages_and_no_others():
    case = serving_cases.cascade_case("4x128+70", heads="4x2x16", page_size=16)
    assert case.shared == 8
    assert (case.table[:, :8] == case.table[0, :8]).all()
    own = case.table[:, 8:].ravel().tolist()
    assert len({*own, *case.table[0, :8].tolist()}) == case.pages == 8 + 4 * 5
    assert case.lengths.tolist() == [198] * 4


@pytest.mark.parametrize("text", ["4x100+8", "4x128", "many"])
def test_a_cascade_of_another_form_is_refused(text):
    with pytest.raises(UsageError, match=r"whole pages of 64, not"):
        serving_cases.cascade_case(text)


def test_checked_rows_are_of_sequences_with_queries_ends_and_the_longest_among_them():
    new = np.array([0, 1, 1, 40, 0, 3])
    rows = serving_reference.checked_rows(new, 2, 4)
    assert {sequence for _, sequence, _ in rows} == {1, 3, 5}
    assert [place for _, sequence, place in rows if sequence == 3] == [0, 13, 26, 39]
    assert all(row == new[:sequence].sum() + place for row, sequence, place in rows)
