"""Real worker processes against planted defects: each is named rightly and harms no other config."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attn_tune.db import RecordedTrial, decide
from attn_tune.schema.trial import WHOLE, Stage, Status, Trial, is_twin, twin_round
from attn_tune.tuner.plan.planner import make_plan
from attn_tune.tuner.protocol import ConfigRef, Finals, MeasurePolicy, Phase, Run
from attn_tune.tuner.run.executor import ExecutorError, Interrupted, IsolatedExecutor
from attn_tune.tuner.run.progress import Progress, ProgressKind
from attn_tune.tuner.run.sweep import sweep
from tests.patience import PATIENCE_S, until
from tests.planted.planted_battery import PatientExecutor

POLICY = MeasurePolicy(samples=4, max_s=0.2, rounds=4, rounds_max_s=2.0)
EXPECTED = {
    "none": (Status.OK, ""),
    "wrong": (Status.INCORRECT, "out is wrong"),
    "wrong_on_odd": (Status.INCORRECT, "on the feature problem "),
    "flaky": (Status.INCORRECT, "different bits"),
    "missing_lse": (Status.INCORRECT, "lse is missing"),
    "poison": (Status.INCORRECT, "out is wrong"),
    "exit_in_trace": (Status.CRASHED, "last words of a dying compiler"),
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trials(planted, point, device, environment) -> list[Trial]:
    """Every trial of one sweep over everything planted."""
    specs = [spec for name, spec in planted.items() if name.startswith("planted")]
    plan = make_plan([point], kernels=specs, device=device, environment=environment)
    with PatientExecutor() as executor:
        events = list(sweep(plan, executor, policy=POLICY))
    last = events[-1]
    assert isinstance(last, Progress)
    assert (last.kind, last.reason) == (ProgressKind.SWEEP_FINISHED, "finished")
    return [event for event in events if isinstance(event, Trial)]


@pytest.mark.parametrize("defect", EXPECTED)
def test_each_defect_is_named(trials, defect):
    found = [t for t in trials if t.direction == "fwd" and t.config.get("defect") == defect]
    status, words = EXPECTED[defect]
    assert found
    # Who is wrong on odd lengths alone is right on this case; the feature problems have the last word.
    for trial in found[-1:] if defect == "wrong_on_odd" else found:
        assert trial.status is status, trial.reason
        assert words in trial.reason


@pytest.mark.parametrize("name", ["planted_wrong", "planted_deadly"])
def test_neighbours_are_unharmed(trials, name):
    honest = [
        t for t in trials if t.kernel.endswith(name) and t.config.get("defect") == "none" and t.stage is Stage.SEARCH
    ]
    assert [t.config["turn"] for t in honest] == [0, 1]
    assert all(t.status is Status.OK for t in honest)
    assert [t.is_heuristic for t in honest] == [True, False]


def test_a_config_is_not_blamed_for_the_one_before(trials):
    """The honest config after ``poison`` dies on the poisoned worker and is right on a fresh one."""
    order = [t for t in trials if t.kernel.endswith("planted_deadly") and t.direction == "fwd"]
    searched = [(t.config["defect"], t.status) for t in order if t.stage is Stage.SEARCH]
    assert searched[-2:] == [("poison", Status.INCORRECT), ("none", Status.OK)]


def test_a_wrong_gradient_is_caught_in_its_part_and_not_composed(trials):
    backward = [t for t in trials if t.kernel.endswith("planted_backward") and t.direction == "bwd"]
    wrong = [t for t in backward if t.part == "dkv" and t.config["defect"] == "wrong_dk"]
    assert [t.status for t in wrong] == [Status.INCORRECT]
    assert {e.output for e in wrong[0].errors if e.ratio > 1} == {"dk"}
    assert {e.output for e in wrong[0].errors} == {"dk", "dv"}
    refused = [t for t in backward if t.config.get("work") == 99]
    assert [(t.status, t.part) for t in refused] == [(Status.UNSUPPORTED, "dq")]
    finals = [t for t in backward if t.stage is Stage.FINAL]
    assert any(t.is_heuristic for t in finals)
    light = {"defect": "none", "work": 0}
    assert any(t.config == {"dq": light, "dkv": light} for t in finals)


def test_dropped_outputs_cost_nothing(trials):
    """The heavy launch of the other part is dead code: a light part alone is faster than the whole."""
    backward = [t for t in trials if t.kernel.endswith("planted_backward") and t.measurement]
    light = [t for t in backward if t.part == "dq" and t.config["work"] == 0]
    heavy = [t for t in backward if t.part == WHOLE and t.is_heuristic]
    # Of samples that others disturbed the least one is the truest.
    assert min(light[0].measurement.samples_ns) < min(heavy[0].measurement.samples_ns)


def test_wrong_configs_reach_neither_finals_nor_decisions(trials):
    finals = [t for t in trials if t.stage is Stage.FINAL]
    assert {t.config.get("defect", "none") for t in finals} == {"none"}
    assert all("wrong" not in str(t.config) for t in finals)
    for direction in ("fwd", "bwd"):
        found = [RecordedTrial(1, t) for t in trials if t.direction == direction]
        decisions = decide(found)
        assert decisions
        assert all("wrong" not in str(d.config) for d in decisions)
        assert {d.config.get("defect", "none") for d in decisions} == {"none"}


def test_kernels_that_cannot_be_planned_say_why(trials):
    refused = [t for t in trials if t.kernel.endswith("planted_refused") and t.direction == "fwd"]
    assert [(t.status, t.reason, t.config) for t in refused] == [(Status.UNSUPPORTED, "it never works here", {})]
    broken = [t for t in trials if t.kernel.endswith("planted_broken") and t.direction == "fwd"]
    assert [t.status for t in broken] == [Status.RUNTIME_ERROR]
    assert "no tile is small enough" in broken[0].reason


def test_finals_are_paired(trials):
    finals = [t for t in trials if t.stage is Stage.FINAL and t.direction == "fwd"]
    rounds = {t.measurement.round_id for t in finals}
    (first,) = (name for name in rounds if not is_twin(name))
    assert rounds == {first, twin_round(first)}
    twice = [t.config for t in finals if is_twin(t.measurement.round_id)]
    assert len(twice) == 1
    assert len({len(t.measurement.samples_ns) for t in finals}) == 1
    assert all(t.measurement.protocol.interleaved and t.errors for t in finals)


def request(point, device, defect: str) -> Run:
    ref = ConfigRef(
        kernel="flash_attention/planted_deadly",
        signature=point.signature,
        direction="fwd",
        config={"defect": defect},
    )
    return Run(ref=ref, device=device, policy=POLICY, seeds=(0,))


def test_a_config_that_is_wrong_in_a_fresh_process_is_no_decision(planted, point, device, environment):
    plan = make_plan([point], kernels=[planted["needs_others"]], device=device, environment=environment)
    with PatientExecutor() as executor:
        trials = [e for e in sweep(plan, executor, policy=POLICY) if isinstance(e, Trial)]
    found = {(str(t.stage), t.config["turn"], str(t.status)) for t in trials if t.config.get("defect") == "wrong_alone"}
    assert found == {("search", 1, "ok"), ("final", 1, "incorrect")}
    (decision,) = decide([RecordedTrial(1, t) for t in trials])
    assert decision.config["defect"] == "none"


def test_finals_run_in_a_spare_worker_that_is_kept_where_processes_can_share_the_device(planted, point, device):
    shared = dataclasses.replace(device, platform="cuda")
    with PatientExecutor() as executor:
        executor._start_spare(device)
        assert executor._spare is None
        executor._start_spare(shared)
        spare = executor._spare.pid
        run = request(point, device, "none")
        assert executor.run(run).status is Status.OK
        # The first request had no worker to go to yet, so it took the spare one.
        assert executor.worker_pid == spare
        executor._start_spare(shared)
        waiting = executor._spare.pid
        finals = Finals(refs=(run.ref,), device=device, round_id="r", policy=POLICY)
        assert executor.finals(finals).outcomes[0].status is Status.OK
        assert executor.worker_pid == waiting
        assert not _alive(spare)
        assert executor.run(run).status is Status.OK
        assert executor.worker_pid == waiting
        executor._start_spare(shared)
        left = executor._spare.pid
    assert not _alive(left)


@pytest.mark.exhaustive  # a lost worker is replaced in each fault of test_fault_battery.py
def test_a_spare_worker_that_died_is_replaced(planted, point, device):
    shared = dataclasses.replace(device, platform="cuda")
    with PatientExecutor() as executor:
        executor._start_spare(shared)
        spare = executor._spare.pid
        os.kill(spare, signal.SIGKILL)
        until(lambda: not _alive(spare))
        assert executor.run(request(point, device, "none")).status is Status.OK
        assert executor.worker_pid != spare


def test_an_interrupt_kills_the_worker_at_once(planted, point, device):
    with PatientExecutor() as executor:
        executor.identify()
        pid = executor.worker_pid
        executor.hang_s = PATIENCE_S
        executor.interrupt = lambda: executor._phase is Phase.COMPILE
        with pytest.raises(Interrupted):
            executor.run(request(point, device, "hang_in_compile"))
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


PARENT = """
import sys, time
from attn_tune.tuner.run.executor import IsolatedExecutor
executor = IsolatedExecutor()
executor.identify()
print(executor.worker_pid, flush=True)
time.sleep(600)
"""


def test_a_worker_does_not_outlive_its_parent():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    os.kill(worker, 0)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not _alive(worker))


def _alive(pid: int) -> bool:
    """Whether the process still runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_worker_that_cannot_start_is_an_error_with_its_last_words():
    with (
        IsolatedExecutor(environment={"JAX_PLATFORMS": "no_such_platform"}) as executor,
        pytest.raises(ExecutorError, match="no_such_platform"),
    ):
        executor.identify()
