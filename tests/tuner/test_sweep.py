"""The loop, on an executor that answers from a table: order, composition, battery, finals, stopping, resuming."""

import math
import threading

import pytest

from attn_tune.schema.trial import Stage, Status, Trial
from attn_tune.tuner.plan import make_plan
from attn_tune.tuner.progress import Progress, ProgressKind
from attn_tune.tuner.strategies import random_sample
from attn_tune.tuner.sweep import sweep
from tests.tuner.replay import ReplayExecutor, one_launch, two_launches


@pytest.fixture
def plan_for(point, device, environment):
    def plan_for(*specs, **kwargs):
        return make_plan(
            [point],
            kernels=specs,
            device=device,
            environment=environment,
            directions=["fwd"],
            **kwargs,
        )

    return plan_for


def trials_of(events) -> list[Trial]:
    return [event for event in events if isinstance(event, Trial)]


def kinds_of(events) -> list[ProgressKind]:
    return [event.kind for event in events if isinstance(event, Progress)]


FAST = {("fast", "", 4): 100, ("fast", "", 8): 70, ("fast", "", 16): 50}


def test_events_come_in_order(plan_for):
    executor = ReplayExecutor(FAST)
    events = list(sweep(plan_for(one_launch("fast", [8, 16])), executor))
    kinds = ProgressKind
    assert kinds_of(events) == [
        kinds.SWEEP_STARTED,
        kinds.CASE_STARTED,
        kinds.KERNEL_STARTED,
        kinds.FINALS_STARTED,
        kinds.CASE_FINISHED,
        kinds.SWEEP_FINISHED,
    ]
    assert [(t.config["size"], t.stage) for t in trials_of(events)] == [
        (4, Stage.SEARCH),
        (8, Stage.SEARCH),
        (16, Stage.SEARCH),
        (4, Stage.FINAL),
        (16, Stage.FINAL),
        (8, Stage.FINAL),
    ]
    last = events[-1]
    assert (last.done, last.total, last.reason) == (3, 3, "finished")


def test_finals_pair_the_kernels_and_carry_the_errors(plan_for):
    times = FAST | {("slow", "", 4): 400, ("slow", "", 8): 300}
    executor = ReplayExecutor(times)
    plan = plan_for(one_launch("fast", [8, 16]), one_launch("slow", [8, 16]))
    finals = [t for t in trials_of(sweep(plan, executor)) if t.stage is Stage.FINAL]
    assert {t.measurement.round_id for t in finals} == {executor.races[0].round_id}
    assert {(t.kernel.partition("/")[2], t.config["size"]) for t in finals} == {
        ("fast", 4),
        ("fast", 8),
        ("fast", 16),
        ("slow", 4),
        ("slow", 8),
    }
    assert all(t.errors for t in finals)
    assert sum(t.is_heuristic for t in finals) == 2


def test_parts_are_searched_at_the_heuristic_and_composed(plan_for):
    times = {
        ("k", "a", 4): 40,
        ("k", "a", 8): 30,
        ("k", "b", 4): 40,
        ("k", "b", 16): 10,
        ("k", "", (4, 4)): 80,
        ("k", "", (8, 16)): 40,
    }
    executor = ReplayExecutor(times)
    trials = trials_of(sweep(plan_for(two_launches("k", [8, 99], [16])), executor))
    seen = [(t.part, t.status, t.is_heuristic) for t in trials if t.stage is Stage.SEARCH]
    ok, wrong = Status.OK, Status.INCORRECT
    assert seen == [
        ("", ok, True),
        ("a", ok, True),
        ("a", ok, False),
        ("a", wrong, False),
        ("b", ok, True),
        ("b", ok, False),
        ("", ok, False),
    ]
    in_part_a = next(
        r for r in executor.runs if r.ref.part == "a" and r.ref.config["a"]["size"] == 8
    )
    assert in_part_a.ref.config["b"] == {"size": 4}
    finals = [t.config for t in trials if t.stage is Stage.FINAL]
    assert finals == [
        {"a": {"size": 4}, "b": {"size": 4}},
        {"a": {"size": 8}, "b": {"size": 16}},
    ]


def test_what_comes_is_said_in_the_order_it_comes(plan_for):
    times = {("k", "", (4, 4)): 80} | {("k", part, n): 50 - n for part in "ab" for n in (4, 8, 16)}
    executor = ReplayExecutor(times)
    list(sweep(plan_for(two_launches("k", [8], [16])), executor))
    coming, *later = executor.expected
    assert list(coming) == [run.ref for run in executor.runs][: len(coming)]
    # What the best parts make together is not known before.
    assert len(coming) == len(executor.runs) - 1
    assert set(later) == {()}


def test_nothing_is_expected_of_a_sweep_that_was_left(plan_for):
    executor, stop = ReplayExecutor(FAST), threading.Event()
    for event in sweep(plan_for(one_launch("fast", [8, 16])), executor, stop=stop):
        if isinstance(event, Trial):
            stop.set()
    assert [len(refs) for refs in executor.expected] == [3, 0]


def test_the_battery_is_for_those_who_may_win(plan_for):
    sizes = list(range(5, 25))
    times = {("k", "", s): 1000 - s for s in [4, *sizes]}  # Each is faster than all before.
    executor = ReplayExecutor(times)
    list(sweep(plan_for(one_launch("k", sizes)), executor))
    assert all(r.battery_below_ns > times["k", "", r.ref.config["size"]] for r in executor.runs)
    slower = ReplayExecutor({("k", "", s): 1000 + s for s in [4, *sizes]})
    list(sweep(plan_for(one_launch("k", sizes)), slower))
    assert math.isinf(slower.runs[0].battery_below_ns)
    tested = [r for r in slower.runs if r.battery_below_ns > 1000 + r.ref.config["size"]]
    assert len(tested) == 1  # The heuristic alone: nothing beats it.
    assert slower.runs[-1].best_ns == 1004
    assert finalists_of(slower) == [4]


# By size: 5 and 7 are new bests, 6 and 8 are faster than the heuristic but never the fastest so far.
RACE = {("k", "", s): ns for s, ns in [(4, 100), (5, 80), (6, 85), (7, 60), (8, 61), (9, 300)]}


def test_only_who_passed_the_battery_goes_to_the_finals(plan_for):
    executor = ReplayExecutor(RACE)
    list(sweep(plan_for(one_launch("k", [5, 6, 7, 8, 9])), executor))
    assert executor.passed_battery == [4, 5, 7]
    assert finalists_of(executor) == [4, 7, 5]


def test_a_config_that_fails_the_battery_beats_nobody(plan_for):
    executor = ReplayExecutor(RACE, wrong_on_battery={7})
    list(sweep(plan_for(one_launch("k", [5, 6, 7, 8, 9])), executor))
    assert executor.passed_battery == [4, 5, 8]
    assert finalists_of(executor) == [4, 8, 5]


@pytest.mark.parametrize("stopped_after", [1, 2, 3, 4, 5])
def test_a_resumed_sweep_knows_who_passed_the_battery(plan_for, stopped_after):
    spec, trials = one_launch("k", [5, 6, 7, 8, 9]), []
    for event in sweep(plan_for(spec), ReplayExecutor(RACE)):
        trials += [event] if isinstance(event, Trial) else []
        if len(trials) == stopped_after:
            break
    plan = plan_for(
        spec,
        measured=lambda *_: {(t.part, t.config_digest): t.status for t in trials},
        history=lambda *_: trials[::-1],  # A database may give them in any order.
    )
    again = ReplayExecutor(RACE)
    list(sweep(plan, again))
    assert finalists_of(again) == [4, 7, 5]
    assert again.passed_battery == [s for s in (4, 5, 7) if s - 3 > stopped_after]


def finalists_of(executor: ReplayExecutor) -> list[int]:
    return [ref.config["size"] for ref in executor.races[-1].refs]


def test_a_wrong_heuristic_does_not_stop_the_search(plan_for):
    executor = ReplayExecutor({("k", "", 8): 10})
    trials = trials_of(sweep(plan_for(one_launch("k", [8])), executor))
    assert [(t.status, t.stage) for t in trials] == [
        (Status.INCORRECT, Stage.SEARCH),
        (Status.OK, Stage.SEARCH),
        (Status.OK, Stage.FINAL),
    ]


def test_lost_finals_are_reported_and_the_sweep_goes_on(plan_for):
    executor = ReplayExecutor(FAST, broken_finals=True)
    events = list(sweep(plan_for(one_launch("fast", [8])), executor))
    finished = [e for e in events if isinstance(e, Progress) and e.case and e.reason]
    assert [e.reason for e in finished] == ["the finals died"]
    assert kinds_of(events)[-1] is ProgressKind.SWEEP_FINISHED


def test_stop_ends_the_sweep_and_a_plan_with_its_trials_goes_on(plan_for):
    spec, stop = one_launch("fast", [8, 16]), threading.Event()
    executor, trials, last = ReplayExecutor(FAST), [], None
    for event in sweep(plan_for(spec), executor, stop=stop):
        last = event
        if isinstance(event, Trial):
            trials.append(event)
            if len(trials) == 2:
                stop.set()
    assert (last.kind, last.reason) == (ProgressKind.SWEEP_FINISHED, "stopped")
    assert [t.config["size"] for t in trials] == [4, 8]

    plan = plan_for(
        spec,
        measured=lambda *_: {(t.part, t.config_digest): t.status for t in trials},
        history=lambda *_: trials,
    )
    again = ReplayExecutor(FAST)
    rest = trials_of(sweep(plan, again))
    assert [r.ref.config["size"] for r in again.runs] == [16]
    assert [t.config["size"] for t in rest if t.stage is Stage.FINAL] == [4, 16, 8]

    everything = trials + rest
    done = plan_for(
        spec,
        measured=lambda *_: {(t.part, t.config_digest): t.status for t in everything},
        history=lambda *_: everything,
    )
    idle = ReplayExecutor(FAST)
    assert trials_of(sweep(done, idle)) == []
    assert not idle.runs
    assert not idle.races


def test_what_failed_is_not_tried_again_by_a_resumed_sweep(plan_for):
    """Not even the untuned config, which is tried first in any case."""
    spec, times = one_launch("k", [8, 16]), {("k", "", 8): 10, ("k", "", 16): 5}
    trials = trials_of(sweep(plan_for(spec), ReplayExecutor(times)))[:2]
    assert [t.status for t in trials] == [Status.INCORRECT, Status.OK]
    plan = plan_for(
        spec,
        measured=lambda *_: {(t.part, t.config_digest): t.status for t in trials},
        history=lambda *_: trials,
    )
    again = ReplayExecutor(times)
    list(sweep(plan, again))
    assert [run.ref.config["size"] for run in again.runs] == [16]
    assert finalists_of(again) == [16, 8]


def test_a_spent_budget_ends_the_sweep(plan_for):
    executor = ReplayExecutor(FAST)
    events = list(sweep(plan_for(one_launch("fast", [8])), executor, budget_s=0.0))
    assert trials_of(events) == []
    assert events[-1].reason == "budget"


def test_a_strategy_decides_what_is_tried(plan_for):
    sizes = list(range(5, 50))
    executor = ReplayExecutor({("k", "", s): s for s in [4, *sizes]})
    plan = plan_for(one_launch("k", sizes))
    list(sweep(plan, executor, strategy=random_sample(5, "seed")))
    tried = [r.ref.config["size"] for r in executor.runs]
    assert tried[0] == 4
    assert len(tried) == 5
