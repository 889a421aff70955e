"""Sweep and database joined: every trial stored, nothing tried twice, every ending reported as it is."""

import threading

import pytest

from attn_tune.commands.sweeps.database_sweep import open_lab, plan_sweep, run_sweep
from attn_tune.db import Database, export_pack
from attn_tune.db.release.evidence import Evidence
from attn_tune.runtime.active.layers import use_pack
from attn_tune.schema import GateError, Stage, Status, StorageError, config_digest
from attn_tune.schema.conditions import SHARED_HOST, Conditions
from attn_tune.tuner.plan.strategies.effort import make_effort
from attn_tune.tuner.run.fleet.fleet import Fleet
from tests.cli.fakes import DEVICE, ENVIRONMENT, SIGNATURE, FakeExecutor, fill, request


def test_every_trial_is_stored_and_each_case_decided(tmp_path):
    path = tmp_path / "lab.db"
    outcome = fill(path)
    assert outcome.ending == "finished"
    assert outcome.without == ()
    with open_lab(path) as database:
        assert sum(1 for _ in database.trials()) == outcome.trials > 10
        assert database.status().state == "finished"
        winners = database.decisions(rank=0)
    assert {d.direction for d in winners} == {"fwd", "bwd"}
    assert {d.direction for d in outcome.decisions} == {"fwd", "bwd"}
    fastest = min(
        t.measurement.median_ns for t in _trials(path) if t.direction == "fwd" and t.measurement and t.stage == "final"
    )
    assert next(d for d in winners if d.direction == "fwd").median_ns == pytest.approx(fastest, abs=1)


def _trials(path):
    with open_lab(path) as database:
        return list(database.trials())


@pytest.mark.parametrize("shared", [True, False])
def test_finals_remember_that_another_sweep_ran_on_the_host(tmp_path, shared):
    path = tmp_path / "lab.db"
    fill(path, Fleet([FakeExecutor()], lambda: shared), directions=("fwd",))
    with open_lab(path) as database:
        finals = [t for t in database.trials() if t.stage is Stage.FINAL]
        assert finals
        assert {t.conditions for t in finals} == {Conditions(throttle=(SHARED_HOST,)) if shared else None}
        if shared:
            with pytest.raises(GateError, match="another sweep ran on the host"):
                export_pack(database, tmp_path / "pack", name="p", version="1")


def test_a_second_sweep_finds_nothing_to_do(tmp_path):
    path = tmp_path / "lab.db"
    first = fill(path)
    executor = FakeExecutor()
    second = fill(path, executor)
    assert executor.ran == []
    assert second.trials == 0
    assert second.plan.counts.done == first.plan.counts.todo
    assert [d.config for d in second.decisions] == [d.config for d in first.decisions]


def test_no_resume_measures_again(tmp_path):
    path = tmp_path / "lab.db"
    first = fill(path, directions=("fwd",))
    assert fill(path, directions=("fwd",), resume=False).trials == first.trials


def test_a_stopped_sweep_continues_where_it_was(tmp_path):
    path = tmp_path / "lab.db"
    stop = threading.Event()
    executor = FakeExecutor(after=lambda count: stop.set() if count == 4 else None)
    outcome = run_sweep(request(path, directions=("fwd",)), executor, watch=lambda event: None, stop=stop)
    assert outcome.ending == "stopped"
    with open_lab(path) as database:
        assert database.status().state == "interrupted"
    again = FakeExecutor()
    finished = fill(path, again, directions=("fwd",))
    assert finished.ending == "finished"
    assert set(executor.ran).isdisjoint(again.ran)
    everything = FakeExecutor()
    fill(tmp_path / "other.db", everything, directions=("fwd",))
    assert set(executor.ran) | set(again.ran) == set(everything.ran)


def test_a_spent_budget_is_reported(tmp_path):
    outcome = fill(tmp_path / "lab.db", budget_s=0.0)
    assert outcome.ending == "budget"
    assert outcome.trials == 0


def test_a_sweep_without_a_right_config_names_its_cases(tmp_path):
    executor = FakeExecutor(status=Status.INCORRECT)
    outcome = fill(tmp_path / "lab.db", executor, directions=("bwd",))
    assert outcome.decisions == ()
    (label,) = outcome.without
    assert label.endswith(" bwd")


@pytest.mark.parametrize("where", ["", "on the feature problem flash_attention/v1 b=1: "])
def test_a_kernel_whose_library_cannot_be_imported_is_tried_once_and_ships_once_it_can(tmp_path, where):
    path = tmp_path / "lab.db"
    reason = where + "compile: ImportError: libgone.so: cannot open shared object file (in <module>, registry.py:29)"
    executor = FakeExecutor(status=Status.COMPILE_ERROR, reason=reason)
    assert fill(path, executor, directions=("fwd",)).without
    assert len(executor.ran) == 1
    mended = FakeExecutor()
    (decision,) = fill(path, mended, directions=("fwd",)).decisions
    assert executor.ran[0] in mended.ran
    with open_lab(path) as database:
        evidence = Evidence(database.trials())
    untuned = evidence.heuristic(decision.kernel, decision.environment)
    assert untuned is not None
    assert untuned.samples


def test_a_kernel_that_cannot_be_compiled_for_another_reason_is_tried_on(tmp_path):
    executor = FakeExecutor(status=Status.COMPILE_ERROR, reason="compile: ValueError: ImportError: no")
    fill(tmp_path / "lab.db", executor, directions=("fwd",))
    assert len(executor.ran) > 1


def test_an_error_on_the_way_marks_the_run_as_failed(tmp_path):
    path = tmp_path / "lab.db"

    def fail(count):
        if count == 3:
            raise RuntimeError("the terminal is gone")

    with pytest.raises(RuntimeError):
        fill(path, FakeExecutor(after=fail))
    with open_lab(path) as database:
        assert database.status().state == "failed"
        assert database.status().trials == 2


def test_two_sweeps_on_one_database_are_refused(tmp_path):
    path = tmp_path / "lab.db"
    executor = FakeExecutor()
    with Database.open(path, create=True) as first:
        first.begin_run(device=DEVICE, environment=ENVIRONMENT, argv=["sweep"])
        with pytest.raises(StorageError):
            fill(path, executor)
    assert executor.ran == []


def test_a_search_gets_the_shapes_swept_before_it(tmp_path):
    path = tmp_path / "lab.db"
    fill(path, directions=("fwd",))
    longer = SIGNATURE.replace("t=128 s=128", "t=256 s=256")
    with open_lab(path) as database:

        def told(grid: str):
            wanted = request(path, grid=grid, directions=("fwd",))
            return plan_sweep(wanted, DEVICE, ENVIRONMENT, database).cases[0].kernels[0].prior("")

        (case,) = told(longer).cases
        assert told(SIGNATURE).cases == ()
        measured = {
            t.config_digest: t.measurement.median_ns for t in database.trials() if t.stage == "search" and t.measurement
        }
    assert (case.signature.text, case.same_device) == (SIGNATURE, True)
    assert case.times == pytest.approx(measured, abs=1)


def test_a_search_without_better_hints_gets_those_of_packs(tmp_path):
    lab, pack = tmp_path / "lab.db", tmp_path / "made.atpack"
    fill(lab, directions=("fwd",))
    with open_lab(lab) as database:
        export_pack(database, pack, name="made", version="1", ungated="a test")
        (winner,) = [d for d in database.decide() if d.rank == 0]
    longer = SIGNATURE.replace("t=128 s=128", "t=256 s=256")

    def told(path, grid=longer):
        wanted = request(path, grid=grid, directions=("fwd",))
        with open_lab(path, create=True) as database:
            kernels = plan_sweep(wanted, DEVICE, ENVIRONMENT, database).cases[0].kernels
            (kernel,) = [k for k in kernels if k.kernel.id == winner.kernel]
            return kernel.prior("").cases

    empty = tmp_path / "empty.db"
    assert told(empty) == ()
    with use_pack(pack):
        for grid in (longer, SIGNATURE):
            (case,) = told(empty, grid)
            assert case.signature.text == SIGNATURE
            assert case.same_device
            assert list(case.times) == [config_digest(winner.config)]
        # What was measured says more than the pack made of it.
        (case,) = told(lab)
        assert len(case.times) > 1
        wanted = request(empty, grid=longer, directions=("bwd",))
        with open_lab(empty) as database:
            (kernel,) = plan_sweep(wanted, DEVICE, ENVIRONMENT, database).cases[0].kernels
            assert kernel.prior("").cases == ()


def test_less_effort_tries_less_and_more_continues(tmp_path):
    path = tmp_path / "lab.db"
    executor = FakeExecutor()
    first = fill(path, executor, directions=("fwd",), effort=make_effort("quick", max_trials=3))
    assert len(executor.ran) == first.plan.counts.todo == 3
    again = FakeExecutor()
    quick = fill(path, again, directions=("fwd",), effort=make_effort("quick", max_trials=3))
    assert quick.trials == 0
    rest = FakeExecutor()
    fill(path, rest, directions=("fwd",), effort=make_effort("full"))
    assert rest.ran
    assert set(rest.ran).isdisjoint(executor.ran)


@pytest.mark.parametrize("harm", ["deleted", "moved"])
def test_a_sweep_ends_when_its_database_is_lost(tmp_path, harm):
    path = tmp_path / "lab.db"

    def lose(count):
        if count == 3:
            path.unlink() if harm == "deleted" else path.rename(tmp_path / "elsewhere.db")

    executor = FakeExecutor(after=lose)
    with pytest.raises(StorageError, match="was deleted or moved away") as error:
        fill(path, executor)
    assert error.value.exit_code == 4
    assert len(executor.ran) <= 4  # nothing more is measured for nothing
