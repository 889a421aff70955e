"""Candidates that need no run: configs that cannot fit because smaller ones do not, and programs already tried."""

import pytest

from attn_tune.schema.trial import Stage, Status, Trial
from attn_tune.tuner.plan.dominance import Exhausted, needs_at_least
from attn_tune.tuner.plan.planner import make_plan
from attn_tune.tuner.run.sweep import sweep
from tests.tuner.replay import ReplayExecutor, one_launch

TILE = {"block_q": 64, "block_k": 64, "num_stages": 2, "num_warps": 4}
GROWS = ("block_q", "block_k", "num_stages")


@pytest.mark.parametrize(
    ("change", "dominated"),
    [
        ({}, True),
        ({"num_stages": 3}, True),
        ({"block_q": 128, "block_k": 128}, True),
        ({"block_q": 128, "block_k": 32}, False),
        ({"num_stages": 1}, False),
        # More warps share the registers out differently.
        ({"num_warps": 8}, False),
        ({"num_stages": 3, "num_warps": 2}, False),
        # A knob that one of them has not says nothing.
        ({"max_registers": 128}, False),
    ],
)
def test_only_what_is_no_smaller_in_any_knob_is_ruled_out(change, dominated):
    exhausted = Exhausted(GROWS)
    exhausted.add(TILE, "needs 300 KB")
    found = exhausted.ruled_out({**TILE, **change})
    assert bool(found) is dominated is needs_at_least({**TILE, **change}, TILE, GROWS)
    if found:
        assert "block_q=64, block_k=64, num_stages=2" in found.reason
        assert "needs 300 KB" in found.reason


def test_a_kernel_that_does_not_say_what_grows_loses_nothing():
    exhausted = Exhausted(())
    exhausted.add(TILE, "needs 300 KB")
    assert exhausted.ruled_out(TILE) is None


@pytest.fixture
def sweep_of(point, device, environment):
    def sweep_of(executor, *specs):
        plan = make_plan([point], kernels=specs, device=device, environment=environment, directions=["fwd"])
        events = sweep(plan, executor)
        return [e for e in events if isinstance(e, Trial) and e.stage is Stage.SEARCH]

    return sweep_of


TIMES = {("k", "", size): 100 + size for size in (4, 8, 16, 32, 64)}


def test_after_one_ran_out_larger_ones_are_stored_and_not_run(sweep_of):
    executor = ReplayExecutor(TIMES, too_large=16)
    trials = sweep_of(executor, one_launch("k", [8, 16, 32, 64], grows=("size",)))
    assert {t.config["size"]: str(t.status) for t in trials} == {
        4: "ok",
        8: "ok",
        16: "out_of_resources",
        32: "out_of_resources",
        64: "out_of_resources",
    }
    assert [run.ref.config["size"] for run in executor.runs] == [4, 8, 16]
    assert "size=16" in trials[-1].reason
    # They are no longer compiled ahead either.
    later = executor.expected[-3:]
    assert all(ref.config["size"] < 32 for refs in later for ref in refs)


def test_without_dominance_each_is_run(sweep_of):
    executor = ReplayExecutor(TIMES, too_large=16)
    sweep_of(executor, one_launch("k", [8, 16, 32, 64]))
    assert [run.ref.config["size"] for run in executor.runs] == [4, 8, 16, 32, 64]


def test_a_program_that_was_tried_is_not_run_again(sweep_of):
    programs = {4: "a", 8: "b", 16: "a", 32: "b", 64: ""}
    executor = ReplayExecutor(TIMES, programs=programs)
    trials = sweep_of(executor, one_launch("k", [8, 16, 32, 64]))
    twins = {t.config["size"]: t.reason for t in trials if t.status is Status.UNSUPPORTED}
    assert set(twins) == {16, 32}
    assert '{"size":4}' in twins[16]
    assert '{"size":8}' in twins[32]
