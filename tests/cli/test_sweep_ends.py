"""The end of a sweep and what comes after it: what is not finished, what to do next, what calls get."""

import contextlib
import dataclasses
import json
import os
import re
import shlex
import signal
import threading
import time
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app
from attn_tune.commands import sweep as command
from attn_tune.commands.sweeps.progress import View
from attn_tune.commands.sweeps.tally import Tally
from attn_tune.db import Database
from attn_tune.kernels import registry
from attn_tune.kernels.lang.triton import limits
from attn_tune.ops.registry import get_op
from attn_tune.runtime.active import settings
from attn_tune.schema import Status, config_to_dict
from attn_tune.tuner.plan.grid import load_grid
from attn_tune.tuner.protocol import Outcome
from tests.cli.fakes import DEVICE, ENVIRONMENT, POINT, SIGNATURE, FakeExecutor, fill
from tests.db.facts import begin, make_trial
from tests.ops.known import known_kernels

LONGER = SIGNATURE.replace("t=128 s=128", "t=256 s=256")
OWN = f"""
summary = "a problem of one's own"
[[layer]]
op = "flash_attention"
name = "prompt"
{chr(10).join(SIGNATURE.partition(" ")[2].replace("dtype=bfloat16", "dtype='bfloat16'").split())}
"""


def run(*words):
    # Each command is a process of its own: no pack that an earlier one saw is remembered.
    settings._current = None
    result = CliRunner().invoke(app, [str(word) for word in words], prog_name="attn-tune")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setattr("attn_tune.tuner.run.fleet.lease.lease_folder", lambda: tmp_path / "leases")
    for name in ("PACKS", "OVERRIDES", "DB"):
        monkeypatch.delenv(f"ATTN_TUNE_{name}", raising=False)
    monkeypatch.setattr(settings, "_current", None)
    monkeypatch.setattr("attn_tune.devices.identity.current_device", lambda: DEVICE)


@pytest.fixture
def worker(monkeypatch):
    """The fake device in the place of the worker process."""

    class Worker(FakeExecutor):
        settings: ClassVar[dict] = {}

        def __init__(self, **ignored):
            super().__init__(**type(self).settings)

        def __enter__(self):
            return self

        def __exit__(self, *exc_info):
            return None

    monkeypatch.setattr("attn_tune.tuner.run.executor.IsolatedExecutor", Worker)
    return Worker


def sweep(tmp_path, *words):
    return run("sweep", "--kernel", "xla", "--db", tmp_path / "lab.db", *words)


def test_a_stop_separates_cases_that_were_begun_from_the_rest(worker, tmp_path):
    worker.settings = {
        "status": Status.INCORRECT,
        "after": lambda count: os.kill(os.getpid(), signal.SIGINT),
    }
    stopped = sweep(tmp_path, "-g", SIGNATURE, "-g", LONGER)
    assert stopped.exit_code == 130
    assert "no valid config" not in stopped.stderr
    assert "not finished: flash_attention" in stopped.stderr
    assert "not started: 3 cases" in stopped.stderr
    worker.settings = {}
    done = json.loads(sweep(tmp_path, "-g", SIGNATURE, "-g", LONGER, "--json").stdout)
    assert (done["not_finished"], done["not_started"], done["without_valid_config"]) == ([], [], [])


def test_a_case_that_a_stop_leaves_without_its_final_is_not_finished(worker, tmp_path):
    worker.settings = {"after": lambda count: os.kill(os.getpid(), signal.SIGINT)}
    stopped = json.loads(sweep(tmp_path, "-g", SIGNATURE, "-d", "fwd", "--json").stdout)
    assert [decision["rule"] for decision in stopped["decisions"]] == ["search"]
    assert len(stopped["not_finished"]) == 1


def test_a_case_that_ran_and_has_no_valid_config_is_not_called_unstarted(worker, tmp_path):
    worker.settings = {"status": Status.INCORRECT}
    failed = json.loads(sweep(tmp_path, "-g", SIGNATURE, "--json").stdout)
    assert len(failed["without_valid_config"]) == 2
    assert failed["not_started"] == failed["not_finished"] == []


@pytest.mark.parametrize("kind", ["preset", "own", "signature"])
def test_next_names_the_point_as_best_takes_it(worker, tmp_path, kind):
    own = tmp_path / "mine.toml"
    own.write_text(OWN)
    grid, expected = {
        "preset": (["-g", "cpu-smoke", "--point", "llama3"], f"attn-tune best {POINT} --db"),
        "own": (["-g", own], f"attn-tune best mine.prompt --grid {own} --db"),
        "signature": (["-g", SIGNATURE], f"attn-tune best {SIGNATURE!r} --db"),
    }[kind]
    shown = sweep(tmp_path, *grid).stdout
    assert expected in shown
    (line,) = [one for one in shown.splitlines() if "attn-tune best" in one]
    assert run(*shlex.split(line)[1:]).exit_code == 0


def test_explain_says_what_only_the_lab_database_knows_until_it_is_shipped(worker, tmp_path, monkeypatch):
    monkeypatch.setattr("attn_tune.devices.environments.current_environment", lambda: ENVIRONMENT)
    monkeypatch.chdir(tmp_path)
    shown = sweep(tmp_path, "-g", "cpu-smoke", "--point", "llama3", "-d", "fwd").stdout
    db = ["--db", tmp_path / "lab.db"]
    asked = ["explain", POINT, "-d", "fwd", "--device", "cpu"]
    # An override would answer before what is exported, so it goes first.
    own = tmp_path / "my overrides.json"
    monkeypatch.setenv("ATTN_TUNE_OVERRIDES", str(own))
    knobs = ["-c", "chunk_q=8", "-c", "chunk_k=8"]
    run("override", "add", "use", "flash_attention/xla", *knobs, "--file", own)
    overridden = run(*asked, *db).stdout
    assert "An override answers first" in overridden
    steps = [line.strip() for line in overridden.splitlines() if line.startswith("  attn-tune")]
    assert [step.split()[1] for step in steps] == ["override", "export", "pack"]
    assert run(*shlex.split(steps[0])[1:]).exit_code == 0
    # Nor does a pack answer while a frozen file is active.
    lock = tmp_path / "my job.json"
    assert run("override", "freeze", lock, "-g", "cpu-smoke", "--device", "cpu").exit_code == 0
    monkeypatch.setenv("ATTN_TUNE_OVERRIDES", str(lock))
    locked = run(*asked, *db).stdout
    assert f"The overrides in {lock} answer first, and they alone." in locked
    assert "Calls read packs" not in locked
    steps = [line.strip() for line in locked.partition("To use it:\n")[2].splitlines()]
    assert [step.split()[:2] for step in steps if step.startswith(("unset", "attn-tune"))] == [
        ["unset", "ATTN_TUNE_OVERRIDES"],
        ["attn-tune", "export"],
        ["attn-tune", "pack"],
        ["attn-tune", "override"],
    ]
    assert f"attn-tune override freeze '{lock}' --overwrite" in locked
    monkeypatch.delenv("ATTN_TUNE_OVERRIDES")
    before = run(*asked, *db)
    assert "decided fwd otherwise: flash_attention/xla chunk_" in before.stdout
    assert "Calls read packs" in before.stdout
    steps = [line.strip() for line in before.stdout.splitlines() if line.startswith("  attn-tune")]
    assert [step.split()[1] for step in steps] == ["export", "pack"]
    assert set(steps) < {line.strip() for line in shown.splitlines()}
    assert json.loads(run(*asked, *db, "--json").stdout)["fwd"]["unshipped"]["median_ns"] > 0
    for step in steps:
        assert run(*shlex.split(step)[1:]).exit_code == 0
    after = run(*asked, *db)
    assert "otherwise" not in after.stdout
    assert json.loads(run(*asked, *db, "--json").stdout)["fwd"]["unshipped"] is None


def test_rows_that_export_will_refuse_are_listed_before(worker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "attn_tune.commands.sweeps.hosts._beside_others",
        lambda folder: contextlib.nullcontext(lambda: True),
    )
    shown = sweep(tmp_path, "-g", SIGNATURE).stdout
    said = "But export will refuse 2 of 2 rows as they are:\n  2 rows: its last final was disturbed"
    assert said in shown
    assert "export will refuse" in run("explain", SIGNATURE, "--db", tmp_path / "lab.db").stdout
    again = json.loads(sweep(tmp_path, "-g", SIGNATURE, "--json").stdout)
    assert [one["doubt"] for one in again["export_refuses"]] == ["noisy", "noisy"]
    refused = run("export", "my-pack", "--db", tmp_path / "lab.db")
    assert (refused.exit_code, "2 of 2 rows" in refused.stderr) == (1, True)


def test_an_untuned_config_that_is_wrong_is_reported_at_the_end(worker, tmp_path, monkeypatch):
    spec = registry.get_kernel("flash_attention/xla")
    problem = get_op("flash_attention").from_signature(load_grid(SIGNATURE).points[0].signature)
    untuned = config_to_dict(spec.searches["fwd"].heuristic(problem, DEVICE))

    def outcome(self, request):
        wrong = request.ref.direction == "fwd" and request.ref.config == untuned
        return Outcome(status=Status.INCORRECT) if wrong else FakeExecutor.run(self, request)

    monkeypatch.setattr(worker, "run", outcome)
    said = (
        "flash_attention/xla is wrong untuned: cpu-smoke.llama3/1x128 fwd; "
        "calls of it without a tuned config give wrong results\n"
    )
    words = ["-g", "cpu-smoke", "--point", "llama3"]
    first, again = sweep(tmp_path, *words), sweep(tmp_path, *words)
    assert first.exit_code == 0
    assert said in first.stderr
    assert "untuned: cpu-smoke.llama3/1x128 bwd" not in first.stderr
    assert said in again.stderr
    (row,) = json.loads(sweep(tmp_path, *words, "--json").stdout)["wrong_untuned"]
    assert (row["kernel"], row["direction"]) == ("flash_attention/xla", "fwd")


def test_unsupported_problems_of_named_kernels_are_no_failure(worker, tmp_path, monkeypatch):
    kernels = registry.kernels()
    picky = dataclasses.replace(
        kernels["flash_attention/xla"],
        unsupported=lambda problem, direction, device: "long" if problem.q_len > 128 else None,
    )
    known_kernels(monkeypatch, kernels | {picky.id: picky})
    words = ["-g", SIGNATURE, "-g", LONGER, "-d", "fwd"]
    done, again = sweep(tmp_path, *words), sweep(tmp_path, *words, "--json")
    assert (done.exit_code, again.exit_code) == (0, 0)
    assert f"unsupported by every kernel asked for: {LONGER} fwd\n" in done.stderr
    assert "no valid config" not in done.stderr
    assert json.loads(again.stdout)["unsupported"] == [f"{LONGER} fwd"]
    none = sweep(tmp_path, "-g", LONGER, "-d", "fwd")
    assert none.exit_code == 1
    assert re.search(r"^Winners on .*: none$", none.stdout, re.MULTILINE)
    assert "'attn-tune plan --all' with the same options says why" in none.stderr


def test_explain_without_a_lab_database(tmp_path):
    plain = run("explain", POINT, "--device", "cpu")
    assert (plain.exit_code, plain.stderr) == (0, "")
    missing = run("explain", POINT, "--device", "cpu", "--db", tmp_path / "none.db")
    assert (missing.exit_code, "none.db" in missing.stderr) == (0, True)


def test_the_default_strategy_asks_for_nothing(worker, tmp_path, monkeypatch):
    for module in ("model", "effort"):
        name = f"attn_tune.tuner.plan.strategies.{module}.has_scikit_learn"
        monkeypatch.setattr(name, lambda: False)
    assert "scikit" not in sweep(tmp_path, "-g", SIGNATURE, "-d", "fwd").stderr
    refused = sweep(tmp_path, "-g", SIGNATURE, "--strategy", "surrogate")
    assert (refused.exit_code, "scikit-learn" in refused.stderr) == (2, True)
    assert "scikit-learn" in run("doctor").stdout


def test_doctor_warns_of_an_assembler_that_makes_wrong_code(monkeypatch):
    assert "assembler" not in run("doctor").stdout
    monkeypatch.setattr(limits, "refuses_assembler", lambda device: "it needs another")
    shown = run("doctor")
    assert shown.exit_code == 0
    assert "warn  assembler    kernels of gates a channel are left out: it needs another" in shown.stdout


def test_doctor_names_the_extras_that_would_bring_more_kernels(monkeypatch):
    monkeypatch.setattr("attn_tune.runtime.lookup.question.is_installed", lambda module: module == "tokamax")
    checks = json.loads(run("doctor", "--json").stdout)["checks"]
    (extra,) = (check["detail"] for check in checks if "pip install 'attn-tune[fa4]'" in check["detail"])
    assert "flash_attention/fa4, flash_attention/fa4_deterministic" in extra
    assert not any("attn-tune[tokamax]" in check["detail"] for check in checks)


def test_kernels_that_cannot_run_here_are_not_called_left_out(worker, tmp_path):
    here = run("plan", "-g", SIGNATURE, "--device", "cpu")
    assert "left out" not in here.stderr
    there = run("plan", "-g", SIGNATURE, "--device", "nvidia-h200")
    assert "left out, not deterministic: flash_attention/triton_fused" in there.stderr
    dense = run("plan", "-g", SIGNATURE, "--op", "flash_attention", "--device", "tpu-v6e")
    assert "left out" not in dense.stderr


FOLDING = [
    ["plan", "-g", SIGNATURE, "--device", "cpu"],
    ["kernels", POINT, "--device", "cpu"],
    ["explain", POINT, "--device", "cpu"],
]


@pytest.mark.parametrize("words", FOLDING, ids=lambda words: words[0])
def test_kernels_that_cannot_run_here_are_one_line(words):
    short, long = run(*words).stdout, run(*words, "--all").stdout
    assert "cannot run here (--all lists them)" in short
    assert "cudnn" not in short
    assert "cannot run here" not in long
    assert "cudnn" in long
    assert len(short.splitlines()) < len(long.splitlines())
    assert "cudnn" in run(*words, "--json").stdout


def test_kernels_that_cannot_run_here_are_one_line_of_validate_and_report(worker, tmp_path):
    words = ["validate", "--feature", "sinks_window", "-d", "fwd"]
    short = run(*words)
    assert "cannot run here (--all lists them)" in short.stdout
    assert "cudnn" not in short.stdout + short.stderr
    assert "cudnn" in run(*words, "--all").stdout
    run("sweep", "-g", SIGNATURE, "-d", "fwd", "--db", tmp_path / "lab.db")
    for section in ("statuses", "failures"):
        report = ["report", "--db", tmp_path / "lab.db", "-s", section]
        assert "cudnn" not in run(*report).stdout
        assert "kernels can do none of this (--all lists them)" in run(*report).stdout
        assert "cudnn" in run(*report, "--all").stdout
        assert "cudnn" in run(*report, "-f", "csv").stdout


def test_who_asks_for_the_reasons_of_failures_gets_all(tmp_path):
    with Database.open(tmp_path / "lab.db", create=True) as database:
        for n in range(30):
            failed = make_trial({"n": n}, status=Status.CRASHED, reason=f"signal {n}")
            database.record(begin(database), failed)
    everything = run("report", "--db", tmp_path / "lab.db").stdout
    assert "and 10 more (--all lists them)" in everything
    alone = run("report", "--db", tmp_path / "lab.db", "-s", "failures").stdout
    assert all(f"signal {n}" in alone for n in range(30))


def test_sections_of_a_report_stand_apart(tmp_path):
    fill(tmp_path / "lab.db")
    shown = run("report", "--db", tmp_path / "lab.db").stdout
    for title in ("\n\nStatuses\n", "\n\nCoverage, device cpu-x86_64\n"):
        assert title in shown


def test_status_of_a_running_sweep_counts_from_its_start(tmp_path, monkeypatch):
    from attn_tune.db import Database

    with Database.open(tmp_path / "lab.db", create=True) as database:
        database.begin_run(device=DEVICE, environment=ENVIRONMENT, argv=["sweep"])
        started = time.time_ns()
        monkeypatch.setattr("time.time_ns", lambda: started + 100 * 10**9)
        data = json.loads(run("status", "--db", tmp_path / "lab.db", "--json").stdout)
    assert data["state"] == "running"
    assert 99 < data["elapsed_s"] < 102


def test_the_first_line_of_progress_has_a_label(capsys):
    View(Tally()).tick()
    assert capsys.readouterr().err.startswith("starting: 0s so far")


def test_progress_says_what_is_being_done(worker, tmp_path, monkeypatch):
    monkeypatch.setattr("attn_tune.commands.sweeps.progress.LINE_EVERY_S", 0.0)
    said = sweep(tmp_path, "-g", SIGNATURE, "-d", "fwd").stderr
    assert said.index("fwd  xla  ") < said.index("fwd  finals: ") < said.rindex("best ")
    assert said.splitlines()[-1].startswith("ending: 4/4 configs")


def test_a_signal_handler_writes_nothing_itself(monkeypatch):
    """It may interrupt a write to the same stream, which Python refuses to enter twice."""
    said, stop = [], threading.Event()
    monkeypatch.setattr(command.output, "note", lambda text: said.append((text, threading.get_ident())))
    with command._stopping(stop):
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(60)
    ((text, thread),) = said
    assert "what was measured is stored" in text
    assert thread != threading.get_ident()


def test_every_place_counts_the_trials_of_a_sweep_alike(worker, tmp_path):
    db = tmp_path / "lab.db"
    refused = json.loads(run("plan", "-g", SIGNATURE, "--db", db, "--json").stdout)["totals"]
    done = run("sweep", "-g", SIGNATURE, "--db", db)
    assert done.exit_code == 0
    with Database.open(db, read_only=True) as database:
        statuses = [trial.status for trial in database.trials()]
    tried, total = sum(status.was_tried for status in statuses), len(statuses)
    assert refused["refused"] + refused["unsupported_kernels"] == total - tried > 0 < tried
    words = f"{tried} tried ({tried} ok), {total - tried} refused"
    shown = run("report", "--db", db, "--section", "statuses").stdout
    rows = [line.split() for line in shown.splitlines() if line.startswith("flash_attention/")]
    hidden = total - sum(int(row[2]) for row in rows)
    words_of_table = f"{words}; {hidden} of these, of kernels that cannot run here, are not in the table"
    assert f"{total} trials of run 1: {words_of_table}" in done.stdout
    assert f"{total} trials: {words_of_table}" in shown
    assert f"trials   {total}: {words}" in run("status", "--db", db).stdout
    page = run("report", "--db", db, "--html", "-").stdout
    for count, word in ((total, "trials"), (tried, "tried"), (total - tried, "refused"), (0, "of them failed")):
        assert f"<b>{count}</b><span>{word}</span>" in page
    assert f"{total} trials: {tried} tried, of which 0 failed; {total - tried} refused" in page


def test_the_end_of_a_run_is_stored_after_what_its_heartbeat_had_read_before(worker, tmp_path, monkeypatch):
    @contextlib.contextmanager
    def late(path, run_id, tally):
        old = tally.progress()
        yield
        with Database.open(path) as own:
            own.heartbeat(run_id, old)

    monkeypatch.setattr("attn_tune.commands.sweeps.database_sweep.beating", late)
    assert sweep(tmp_path, "-g", SIGNATURE).exit_code == 0
    cases = json.loads(run("status", "--db", tmp_path / "lab.db", "--json").stdout)["cases"]
    assert (cases["planned"], cases["done"], cases["with_winner"], cases["left"]) == (2, 2, 2, 0)
