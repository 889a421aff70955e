"""The benchmark of tuning speed: records, how they are added up, and the tables."""

import json

import pytest
import table
import tuning_speed
from tuning_record import Record, Step, Task
from tuning_rows import Row, add_up, make_rows, markdown


def step(direction="fwd", start=10.0, end=14.0, **fields):
    fields = {"statuses": {"ok": 8}, **fields}
    return Step(direction=direction, start_s=start, end_s=end, **fields)


def test_a_record_survives_the_trip_and_a_missing_one_is_empty(tmp_path):
    path = tmp_path / "record.json"
    assert Record.read(path) == Record()
    record = Record(
        steps=(step(best_us=3.5, phases_s={"compile": 1.0}, detail={"finals": 3}),),
        device={"variant": "nvidia-h200"},
        failed="x",
    )
    record.write(path)
    assert Record.read(path) == record
    assert list(tmp_path.iterdir()) == [path]


def test_one_step_has_its_process_beside_it():
    samples = [(11.0, 100.0), (13.0, 50.0), (99.0, 0.0)]
    (row,) = make_rows("x", Record(steps=(step(),)), samples, 8.0)
    assert (row.configs, row.wall_s, row.rate) == (8, 4.0, 2.0)
    assert (row.wall_with_start_s, row.rate_with_start) == (8.0, 1.0)
    assert row.gpu_idle == pytest.approx(0.25)


def test_steps_of_one_process_are_added_up():
    steps = (step(), step("bwd", 14.0, 26.0, statuses={"ok": 3, "ValueError": 1}))
    samples = [(11.0, 100.0), (20.0, 50.0)]
    fwd, bwd, both = make_rows("x", Record(steps=steps), samples, 20.0)
    assert (fwd.wall_with_start_s, bwd.rate_with_start) == (None, None)
    assert (both.direction, both.configs, both.wall_s) == ("fwd+bwd", 12, 16.0)
    assert both.rate == pytest.approx(0.75)
    assert both.rate_with_start == pytest.approx(0.6)
    assert both.statuses == {"ok": 11, "ValueError": 1}
    assert both.gpu_idle == pytest.approx(0.5 * 12 / 16)  # by time, not by row


def test_steps_before_a_failure_stand_and_are_not_added_up():
    record = Record(steps=(step(), step("bwd", 14.0, 20.0)), failed="killed by SIGSEGV")
    rows = make_rows("x", record, [], 20.0)
    assert [(row.direction, row.failed) for row in rows] == [
        ("fwd", ""),
        ("bwd", ""),
        ("", "killed by SIGSEGV"),
    ]
    assert rows[0].gpu_idle is None


def test_processes_of_one_tuner_are_added_up():
    rows = [
        Row(tuner="x", direction="fwd", configs=6, wall_s=3.0, wall_with_start_s=5.0),
        Row(
            tuner="x",
            direction="bwd",
            configs=2,
            wall_s=1.0,
            wall_with_start_s=3.0,
            gpu_idle=0.5,
            phases_s={"compile": 0.5},
        ),
    ]
    both = add_up(rows)
    assert (both.rate, both.rate_with_start) == (2.0, 1.0)
    assert both.gpu_idle is None  # one of them is not known
    assert both.phases_s == {"compile": 0.5}


def test_the_table_has_a_cell_for_everything_and_a_dash_for_what_is_not_known(capsys, tmp_path):
    rows = [
        *make_rows("ours", Record(steps=(step(phases_s={"compile": 2.0, "link": 0.5}),)), [], 5.0),
        Row(tuner="theirs", failed="exit status 1: a | b"),
    ]
    report = tuning_speed.report(Task(), {"variant": "cpu"}, rows)
    assert report["date"].endswith("+00:00")
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    assert table.main([str(path)]) == 0
    printed = capsys.readouterr().out.rstrip("\n")
    assert printed == markdown(row.to_json() for row in rows)
    head, _, first, second = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.split("\n")]
    assert len(head) == len(first) == len(second)
    cells = dict(zip(head, first, strict=True))
    assert (cells["configs"], cells["configs/s"], cells["with start configs/s"]) == (
        "8",
        "2.00",
        "1.60",
    )
    assert (cells["compile s"], cells["link s"]) == ("2.0", "0.5")
    assert (cells["validate s"], cells["GPU idle"], cells["best us"]) == ("-", "-", "-")
    assert dict(zip(head, second, strict=True))["remark"] == "exit status 1: a / b"


def test_files_of_different_benchmarks_are_refused(capsys, tmp_path):
    for name, report in {"a": {"rows": []}, "b": {"kind": "tuning_speed", "rows": []}}.items():
        (tmp_path / name).write_text(json.dumps(report))
    assert table.main([str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "one benchmark" in capsys.readouterr().err


def test_the_table_of_the_other_benchmark_says_what_is_wrong_and_what_failed(capsys, tmp_path):
    where = {"point": "p", "direction": "fwd"}
    ours = {"implementation": "ours", "median_us": 5.0, "tflops": 600.0, "error_ratio": 1.5}
    cudnn = {"implementation": "jax.nn cuDNN", "median_us": 10.0, "tflops": 300.0}
    rows = [ours, cudnn | {"error_ratio": 0.5}, {"implementation": "other", "failed": "no"}]
    path = tmp_path / "peers.json"
    path.write_text(json.dumps({"rows": [where | row for row in rows]}))
    assert table.main([str(path)]) == 0
    last = capsys.readouterr().out.strip().split("\n")[-1]
    assert last == "| p | fwd | 600 (2.00x) wrong | 300 (1.00x) | failed |"
