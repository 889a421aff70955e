"""The loop, on an executor that answers from a table: order, composition, feature problems, finals, stopping."""

import threading

import pytest

from attn_tune.db import RecordedTrial, decide
from attn_tune.schema.trial import Stage, Status, Trial
from attn_tune.tuner.run.progress import Progress, ProgressKind
from attn_tune.tuner.run.sweep import sweep
from tests.tuner.replay import ReplayExecutor, one_launch, two_launches


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
    in_part_a = next(r for r in executor.runs if r.ref.part == "a" and r.ref.config["a"]["size"] == 8)
    assert in_part_a.ref.config["b"] == {"size": 4}
    finals = [t.config for t in trials if t.stage is Stage.FINAL]
    assert finals == [
        {"a": {"size": 4}, "b": {"size": 4}},
        {"a": {"size": 8}, "b": {"size": 16}},
    ]


def finals_of(plan, executor) -> list[int]:
    trials = trials_of(sweep(plan, executor))
    return [t.config["size"] for t in trials if t.stage is Stage.FINAL]


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        # Three, however slow the third is.
        ({8: 1000, 16: 1300, 32: 1600, 64: 1700, 128: 1800}, [8, 16, 32]),
        # All that is within 2 % of the best may be as good.
        ({8: 1000, 16: 1004, 32: 1008, 64: 1012, 128: 1030}, [8, 16, 32, 64]),
        ({8 * i: 1000 + i for i in range(1, 12)}, [8 * i for i in range(1, 7)]),
    ],
)
def test_all_that_may_be_as_good_meet_in_the_finals(plan_for, times, wanted):
    table = {("k", "", size): ns for size, ns in ({4: 2000} | times).items()}
    plan = plan_for(one_launch("k", list(times)))
    assert finals_of(plan, ReplayExecutor(table)) == [4, *wanted]


def test_a_finalist_that_fails_a_feature_problem_is_replaced(plan_for):
    times = {4: 2000, 8: 900, 16: 1000, 32: 1004, 64: 1008, 128: 1012}
    table = {("k", "", size): ns for size, ns in times.items()}
    plan = plan_for(one_launch("k", [8, 16, 32, 64, 128]))
    # What was close to none while the wrong one led is close to the best now.
    executor = ReplayExecutor(table, wrong_on_features=[8])
    assert finals_of(plan, executor) == [4, 16, 32, 64, 128]


def test_a_runner_up_that_may_be_as_good_is_composed_too(plan_for):
    times = {
        ("k", "a", 4): 40_000,
        ("k", "a", 8): 30_000,
        ("k", "a", 9): 30_500,
        ("k", "b", 4): 40_000,
        ("k", "b", 16): 10_000,
        ("k", "", (4, 4)): 80_000,
        ("k", "", (8, 16)): 40_000,
        ("k", "", (9, 16)): 39_000,
    }
    executor = ReplayExecutor(times)
    trials = trials_of(sweep(plan_for(two_launches("k", [8, 9], [16])), executor))
    finals = [(t.config["a"]["size"], t.config["b"]["size"]) for t in trials if t.stage is Stage.FINAL]
    # Together they are faster the other way round than apart; the other part has no runner-up this close.
    assert finals == [(4, 4), (9, 16), (8, 16)]


def test_coming_configs_are_announced_in_their_order(plan_for):
    times = {("k", "", (4, 4)): 80} | {("k", part, n): 50 - n for part in "ab" for n in (4, 8, 16)}
    executor = ReplayExecutor(times)
    list(sweep(plan_for(two_launches("k", [8], [16])), executor))
    coming = list(executor.expected[0])
    searched = [ref for ref in coming if ref.problem is None]
    assert searched == [run.ref for run in executor.runs][: len(searched)]
    # What the best parts make together is not known before.
    assert len(searched) == len(executor.runs) - 1
    # The heuristic's feature problems come right after it.
    small = [ref for ref in coming if ref.problem is not None]
    assert small
    assert coming[1 : 1 + len(small)] == small
    assert {str(ref.config) for ref in small} == {str(searched[0].config)}


def test_the_next_kernel_s_first_configs_are_expected_behind_the_present_ones(plan_for):
    times = {(kernel, "", n): 1000 + n for kernel in "ab" for n in (4, 8)}
    executor = ReplayExecutor(times)
    list(sweep(plan_for(one_launch("a", [8]), one_launch("b", [8])), executor))
    at_hand, behind = ([r for r in executor.expected[0] if r.kernel == f"flash_attention/{k}"] for k in "ab")
    assert list(executor.expected[0]) == [*at_hand, *behind]
    begun = next(refs for refs in executor.expected if refs and refs[0].kernel == "flash_attention/b")
    assert at_hand
    assert behind == list(begun)[: len(behind)]
    assert {ref.config["size"] for ref in behind} == {4, 8}


def test_a_stopped_sweep_announces_no_configs(plan_for):
    executor, stop = ReplayExecutor(FAST), threading.Event()
    for event in sweep(plan_for(one_launch("fast", [8, 16])), executor, stop=stop):
        if isinstance(event, Trial):
            stop.set()
    assert [len([r for r in refs if not r.problem]) for refs in executor.expected] == [3, 0]


def test_a_config_gets_the_time_to_beat(plan_for):
    executor = ReplayExecutor({("k", "", s): 1000 + s for s in (4, 5, 6)})
    list(sweep(plan_for(one_launch("k", [5, 6])), executor))
    assert [run.best_ns for run in executor.runs] == [None, 1004, 1004]


RACE = {("k", "", s): us * 1000 for s, us in [(4, 100), (5, 80), (6, 85), (7, 60), (8, 61), (9, 300)]}


def test_only_the_heuristic_and_the_fastest_must_pass_the_feature_problems(plan_for):
    executor = ReplayExecutor(RACE)
    list(sweep(plan_for(one_launch("k", [5, 6, 7, 8, 9])), executor))
    assert executor.on_features == [4, 7, 8, 5]
    assert finalists_of(executor) == [4, 7, 8, 5]
    said = [{ref.config["size"] for ref in refs if ref.problem} for refs in executor.expected]
    assert [sizes for sizes in said if sizes] == [{4}, {7, 8, 5}]


def test_a_config_that_fails_a_feature_problem_is_wrong_and_the_next_takes_its_place(plan_for):
    executor = ReplayExecutor(RACE, wrong_on_features={7, 8})
    trials = trials_of(sweep(plan_for(one_launch("k", [5, 6, 7, 8, 9])), executor))
    assert executor.on_features == [4, 7, 8, 5, 6, 9]
    assert finalists_of(executor) == [4, 5, 6, 9]
    failed = [t for t in trials if t.status is Status.INCORRECT]
    assert [t.config["size"] for t in failed] == [7, 8]
    assert all(t.reason.startswith("on the feature problem flash_attention/v1 ") for t in failed)
    (decision,) = decide([RecordedTrial(1, trial) for trial in trials])
    assert decision.config["size"] == 5


def test_a_kernel_without_a_right_config_has_no_finals(plan_for):
    executor = ReplayExecutor(RACE, wrong_on_features=range(20))
    trials = trials_of(sweep(plan_for(one_launch("k", [5, 6, 7, 8, 9])), executor))
    assert not executor.races
    assert not decide([RecordedTrial(1, trial) for trial in trials])


@pytest.mark.parametrize("stopped_after", [1, 2, 3, 4, 5, 6])
def test_a_resumed_sweep_has_the_same_finals(plan_for, stopped_after):
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
    assert finalists_of(again) == [4, 7, 8, 5]


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


def test_lost_finals_are_reported_and_the_sweep_continues(plan_for):
    executor = ReplayExecutor(FAST, broken_finals=True)
    events = list(sweep(plan_for(one_launch("fast", [8])), executor))
    finished = [e for e in events if isinstance(e, Progress) and e.case and e.reason]
    assert [e.reason for e in finished] == ["the finals died"]
    assert kinds_of(events)[-1] is ProgressKind.SWEEP_FINISHED


def test_stop_ends_the_sweep_and_a_plan_with_its_trials_continues(plan_for):
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


def test_a_failed_config_is_not_tried_again_by_a_resumed_sweep(plan_for):
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
