"""``attn-tune status`` in every state of a run, ``--watch`` to its end, and after a kill."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import types

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app
from attn_tune.commands import status as command
from attn_tune.db import Activity, Database, RunProgress
from attn_tune.reports.layout import text_width
from attn_tune.schema import Status
from tests.cli.fakes import DEVICE, ENVIRONMENT, SIGNATURE
from tests.db.facts import make_trial
from tests.patience import PATIENCE_S, until

ACTIVITY = Activity(
    device="GPU 0",
    point="llama3-8b/4x4k",
    direction="fwd",
    kernel="triton",
    phase="compiling",
    since_us=time.time_ns() // 1000,
    best_kernel="triton",
    best_us=48.3,
    untuned_us=63.8,
    curve_us=(63.8, 50.0, 48.3),
)
PROGRESS = RunProgress(cases=6, cases_done=2, cases_decided=1, configs=120, configs_done=30, activity=(ACTIVITY,))


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="attn-tune")


@pytest.fixture
def lab(tmp_path):
    with Database.open(tmp_path / "lab.db", create=True) as database:
        yield database


def begin(database, progress=PROGRESS):
    run_id = database.begin_run(device=DEVICE, environment=ENVIRONMENT, argv=["attn-tune", "sweep"])
    database.record(run_id, make_trial())
    database.record(run_id, make_trial(status=Status.CRASHED))
    if progress:
        database.heartbeat(run_id, progress)
    return run_id


def shown(database, *words):
    done = run("status", "--db", database.path, *words)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def data(database, *words):
    return json.loads(shown(database, "--json", *words))


def clock(sleep):
    """The module ``time`` of the command alone, with another ``sleep``."""
    return types.SimpleNamespace(time_ns=time.time_ns, sleep=sleep)


def pass_time(monkeypatch, seconds):
    at = time.time_ns() + seconds * 10**9
    monkeypatch.setattr("time.time_ns", lambda: at)


def test_before_the_first_run(lab):
    assert "no sweep has run yet" in shown(lab)
    assert data(lab)["state"] == "none"


@pytest.mark.parametrize("is_later", [False, True])
def test_watching_waits_for_the_next_run_and_follows_it(lab, monkeypatch, is_later):
    if is_later:
        lab.end_run(begin(lab), "finished")
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            begin(lab)
        if len(slept) == 5:
            lab.end_run(2 if is_later else 1, "finished")

    monkeypatch.setattr(command, "time", clock(sleep))
    done = run("status", "--db", lab.path, "--watch")
    assert done.exit_code == 0, done.stderr
    known = "; run 1 is finished with 4 cases left" if is_later else ""
    assert done.stderr == f"{lab.path}: no sweep runs{known}. Waiting for the next one, until Ctrl-C\n"
    assert len(slept) == 5
    assert "30/120 configs" in done.stdout
    assert f"run {2 if is_later else 1} is finished" in done.stdout


def test_watching_waits_for_a_database_and_shows_a_run_that_ended_between_two_looks(tmp_path, monkeypatch):
    def sleep(seconds):
        with Database.open(tmp_path / "new.db", create=True) as lab:
            lab.end_run(begin(lab), "failed")

    monkeypatch.setattr(command, "time", clock(sleep))
    done = run("status", "--db", tmp_path / "new.db", "--watch")
    assert "run 1 is failed" in done.stdout, done.stderr


def test_watching_ends_with_the_reader_of_its_output(lab):
    begin(lab)
    words = [sys.executable, "-c", "from attn_tune.cli import main; main()", "status", "--db", lab.path, "--watch"]
    watcher = subprocess.Popen([*map(str, words), "0.05"], stdout=subprocess.PIPE, text=True)
    try:
        assert "30/120 configs" in watcher.stdout.readline()
        watcher.stdout.close()
        assert watcher.wait(PATIENCE_S) == 0
    finally:
        watcher.kill()
        watcher.wait()


def test_a_running_run_says_what_is_planned_done_and_left(lab, monkeypatch):
    begin(lab)
    pass_time(monkeypatch, 60)
    text = shown(lab)
    assert "run 1 is running, on cpu-x86_64" in text
    assert re.search(r"now +llama3-8b/4x4k fwd, triton, compiling for ", text)
    assert re.search(r"best +48\.3 us \(triton\), 1\.32x the untuned config", text)
    assert "configs  30 of 120 done, 90 left, " in text
    assert "cases    2 of 6 done: 1 with a winner, 1 without; 4 left" in text
    assert re.search(r"time +1m00s since the start", text)
    assert re.search(r"trials +2: 2 tried \(1 ok, 1 crashed\)", text)
    assert "last sign of life 1m00s ago" in text
    found = data(lab)
    assert found["configs"] == {"planned": 120, "done": 30, "left": 90}
    assert found["cases"] == {"planned": 6, "done": 2, "with_winner": 1, "without_winner": 1, "left": 4}
    assert 59 < found["silent_s"] < 62
    assert found["configs_per_s"] > 0
    assert found["eta_s"] > 0
    (one,) = found["activity"]
    assert (one["point"], one["phase"], one["best_us"], one["untuned_us"]) == (
        "llama3-8b/4x4k",
        "compiling",
        48.3,
        63.8,
    )


@pytest.mark.parametrize("ending", ["finished", "interrupted", "failed"])
def test_a_run_that_ended_has_no_eta(lab, ending):
    lab.end_run(begin(lab), ending)
    text, found = shown(lab), data(lab)
    assert f"run 1 is {ending}" in text
    assert "of work" in text
    assert "eta" not in text
    assert "sign of life" not in text
    assert ("was at" in text) == (ending == "interrupted")
    assert (found["state"], found["eta_s"], found["silent_s"]) == (ending, None, None)


def test_a_run_without_progress_has_what_is_known(lab):
    begin(lab, None)
    assert "configs" not in shown(lab)
    found = data(lab)
    assert (found["configs"], found["cases"], found["activity"], found["trials"]) == (None, None, [], 2)


@pytest.mark.parametrize("columns", ["40", "60", "80", "120"])
def test_lines_fit_the_width(lab, monkeypatch, columns):
    begin(lab)
    monkeypatch.setenv("COLUMNS", columns)
    lines = shown(lab).replace(str(lab.path), "lab.db").splitlines()
    assert max(text_width(line) for line in lines) <= max(int(columns), 60)


def test_the_picture_fits_the_terminal(lab):
    from rich.console import Console

    begin(lab)
    for width in (40, 60, 80, 120):
        console = Console(width=width, force_terminal=True, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
        console.print(command._picture(lab.path, lab.status(), console))
        lines = console.export_text().splitlines()
        assert max(map(text_width, lines)) <= width
        assert any("compiling" in line for line in lines)


@pytest.mark.parametrize("ending", ["finished", "interrupted"])
def test_watching_ends_with_the_run(lab, ending):
    run_id = begin(lab)
    done = []
    watcher = threading.Thread(target=lambda: done.append(run("status", "--db", lab.path, "--watch", "0.01")))
    before, looked = command._look, threading.Event()

    def look(db):
        found = before(db)
        looked.set()
        return found

    command._look = look
    try:
        watcher.start()
        assert looked.wait(60)
        lab.heartbeat(run_id, RunProgress(cases=6, cases_done=6, cases_decided=5, configs=120, configs_done=120))
        lab.end_run(run_id, ending)
        watcher.join(60)
    finally:
        command._look = before
    (result,) = done
    assert result.exit_code == 0
    first, *_ = result.stdout.splitlines()
    assert first.startswith("llama3-8b/4x4k fwd  triton  compiling: 30/120 configs")
    assert f"run 1 is {ending}" in result.stdout
    assert "cases    6 of 6 done: 5 with a winner, 1 without; 0 left" in result.stdout


def test_watching_with_json_waits_for_the_end(lab, monkeypatch):
    run_id = begin(lab)
    monkeypatch.setattr(command, "time", clock(lambda seconds: lab.end_run(run_id, "finished")))
    assert data(lab, "--watch")["state"] == "finished"


def test_ctrl_c_ends_the_watching_with_130(lab, monkeypatch):
    begin(lab)

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "time", clock(interrupt))
    done = run("status", "--db", lab.path, "--watch")
    assert (done.exit_code, done.stderr) == (130, "error: interrupted\n")
    assert data(lab)["state"] == "running"


@pytest.mark.parametrize("words", [("5",), ("--watch", "0"), ("--watch", "-1"), ("--watch", "soon")])
def test_a_wrong_time_is_a_usage_error(lab, words):
    assert run("status", "--db", lab.path, *words).exit_code == 2


def test_progress_of_another_thread_needs_no_open_run_but_a_running_one(lab):
    from attn_tune.schema import StorageError

    run_id = begin(lab, None)
    with Database.open(lab.path) as beside:
        beside.heartbeat(run_id, PROGRESS)
        with pytest.raises(StorageError, match="not open"):
            beside.heartbeat(run_id)
        lab.end_run(run_id, "finished")
        with pytest.raises(StorageError, match="not running"):
            beside.heartbeat(run_id, PROGRESS)
    assert lab.status().progress == PROGRESS


def test_progress_that_cannot_be_read_is_damage(lab):
    begin(lab)
    for text in ('{"a": 1}', "[1]", '[{"device": 1}]', "no json"):
        with lab.transaction() as connection:
            connection.execute("UPDATE run SET activity = ?", (text,))
        done = run("status", "--db", lab.path)
        assert (done.exit_code, "row 1 of run cannot be read" in done.stderr) == (5, True)


def test_merged_runs_keep_their_progress(lab, tmp_path):
    from attn_tune.db import merge_database

    begin(lab)
    with Database.open(tmp_path / "all.db", create=True) as target:
        merge_database(target, lab.path)
        assert target.status().progress == PROGRESS


SWEEP = """
import sys, threading, time
from pathlib import Path
from attn_tune.commands.sweeps import heartbeat
from tests.cli.fakes import FakeExecutor, fill
from attn_tune.tuner.protocol import Phase
heartbeat.BEAT_S = 0.05
def after(count):
    if count == 3:
        print("working", flush=True)
        time.sleep(600)
class Slow(FakeExecutor):
    def run(self, request):
        self.on_phase(Phase.COMPILE)
        return super().run(request)
fill(Path(sys.argv[1]), Slow(after=after))
"""


@pytest.mark.slow
def test_a_killed_sweep_is_interrupted_and_its_time_of_work_is_known(tmp_path):
    path = tmp_path / "lab.db"
    process = subprocess.Popen([sys.executable, "-c", SWEEP, path], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "working\n"

        def state():
            return json.loads(run("status", "--db", path, "--json").stdout)

        beat = state()["silent_s"], state()["elapsed_s"]
        # It beats while nothing is recorded.
        until(lambda: state()["silent_s"] < 0.5 and state()["elapsed_s"] > beat[1] + 1)
        found = state()
        assert (found["state"], found["configs"]["done"]) == ("running", 2)
        assert found["activity"][0]["phase"] == "compiling"
        worked = found["elapsed_s"]
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    found = state()
    assert found["state"] == "interrupted"
    assert worked - 1 <= found["elapsed_s"] <= worked + 60
    text = run("status", "--db", path).stdout
    assert "is interrupted" in text
    assert re.search(r"was at +\S+ fwd, xla, compiling", text) or SIGNATURE.split()[0] in text
    assert re.search(r"time +\d+s of work", text)


@pytest.mark.parametrize(
    ("program", "said"),
    [("/opt/venv/bin/attn-tune", "attn-tune"), ("/opt/attn_tune/__main__.py", "python -m attn_tune")],
)
def test_status_shows_the_command_as_it_was_typed_and_counts_from_its_start(lab, program, said):
    began = time.time_ns() // 1000 - 90_000_000
    words = [program, "sweep", "--point", "a b"]
    run_id = lab.begin_run(device=DEVICE, environment=ENVIRONMENT, argv=words, started_us=began)
    found = json.loads(run("status", "--db", lab.path, "--json").stdout)
    assert found["command"] == f"{said} sweep --point 'a b'"
    assert found["elapsed_s"] >= 90
    lab.end_run(run_id, "finished")
