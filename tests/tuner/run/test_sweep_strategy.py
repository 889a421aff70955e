"""Strategies in a sweep: which configs run, in which batches, with which stored times and priors."""

import math

from attn_tune.schema.trial import Stage, Trial
from attn_tune.tuner.plan.strategies.effort import Effort, StrategyName
from attn_tune.tuner.plan.strategies.space import Prior
from attn_tune.tuner.run.sweep import sweep
from tests.tuner.replay import ReplayExecutor, one_launch, two_launches


def test_a_strategy_decides_what_is_tried(plan_for):
    sizes = list(range(5, 100))
    executor = ReplayExecutor({("k", "", s): s for s in [4, *sizes]})
    effort = Effort(strategy=StrategyName.RANDOM, share=0.1)
    plan = plan_for(one_launch("k", sizes), effort=effort)
    assert plan.counts.todo == 10
    list(sweep(plan, executor, strategy=effort.search))
    tried = [r.ref.config["size"] for r in executor.runs]
    assert tried[0] == 4
    assert len(set(tried)) == len(tried) == 10
    assert tried != sorted(tried)


def sizes_by_kernel(executor):
    return {name: [r.ref.config["size"] for r in executor.runs if r.ref.kernel.endswith(name)] for name in "kz"}


def test_a_kernel_that_is_far_behind_another_is_not_searched_further(plan_for):
    sizes = [5, 6, 7, 8, 9]
    effort = Effort(strategy=StrategyName.PORTFOLIO)
    specs = [one_launch("k", sizes), one_launch("z", sizes)]
    times = {("k", "", s): 100_000 for s in [4, *sizes]}

    def swept(slowness, effort, **earlier):
        executor = ReplayExecutor(times | {("z", "", s): slowness for s in [4, *sizes]})
        plan = plan_for(*specs, effort=effort, **earlier)
        events = list(sweep(plan, executor, strategy=effort.search))
        trials = [e for e in events if isinstance(e, Trial)]
        # Configs that are left out are neither done nor left.
        assert events[-1].done == events[-1].total == len(executor.runs)
        return sizes_by_kernel(executor), trials, plan

    tried, trials, _ = swept(401_000, effort)
    assert tried == {"k": [4, *sizes], "z": [4, 5, 6, 7]}
    # Its untuned config has a place in the finals all the same.
    assert {t.config["size"] for t in trials if t.stage is Stage.FINAL and t.kernel.endswith("z")} == {4}
    assert swept(399_000, effort)[0]["z"] == [4, *sizes]
    assert swept(401_000, Effort())[0]["z"] == [4, *sizes]

    def known(kernel, *_):
        return [t for t in trials if t.kernel == kernel]

    stored = {
        "measured": lambda kernel, *_: {(t.part, t.config_digest): t.status for t in known(kernel)},
        "history": known,
    }
    again, _, plan = swept(401_000, effort, **stored)
    assert again == {"k": [], "z": []}
    assert plan.cases[0].finished
    assert swept(401_000, Effort(), **stored)[0] == {"k": [], "z": [8, 9]}


def test_a_kernel_is_far_behind_only_what_is_proven_right(plan_for):
    sizes = [5, 6, 7, 8, 9]
    effort = Effort(strategy=StrategyName.PORTFOLIO)
    times = {("k", "", s): 100_000 for s in [4, *sizes]} | {("z", "", s): 900_000 for s in [4, *sizes]}
    executor = ReplayExecutor(times, wrong_on_features=[4, *sizes])
    list(
        sweep(plan_for(one_launch("k", sizes), one_launch("z", sizes), effort=effort), executor, strategy=effort.search)
    )
    assert sizes_by_kernel(executor)["z"] == [4, *sizes]


def in_twos(space):
    """Candidates two by two; ends once a pair brings nothing."""
    best = math.inf
    for start in range(0, len(space.candidates), 2):
        times = yield tuple(space.candidates[start : start + 2])
        if min(times) >= best:
            return
        best = min(times)


def test_each_batch_is_expected_before_it_runs_and_its_times_decide(plan_for):
    sizes = [40, 30, 20, 25, 60, 5, 6]
    times = {("k", "", size): size for size in [4, *sizes]} | {("k", "", 4): 50}
    executor = ReplayExecutor(times)
    effort = Effort(max_trials=6)
    list(sweep(plan_for(one_launch("k", sizes), effort=effort), executor, strategy=in_twos))
    assert [r.ref.config["size"] for r in executor.runs] == [4, 40, 30, 20, 25, 60]
    # The untuned config runs before any batch. What is only perhaps tried is not prepared for. The finals come
    # after the feature problems.
    batches = [[ref.config["size"] for ref in refs if ref.problem is None] for refs in executor.expected]
    assert batches == [[4], [40], [30, 20], [25, 60], [], [4, 20, 25, 30], []]


def test_a_config_that_was_tried_before_answers_from_its_stored_time(plan_for):
    sizes = [40, 30, 20, 10, 60]
    spec = one_launch("k", sizes)
    executor = ReplayExecutor({("k", "", size): 10 * size for size in [4, *sizes]})
    first = [event for event in sweep(plan_for(spec), executor) if isinstance(event, Trial)]
    searched = [t for t in first if t.stage is Stage.SEARCH and t.config["size"] != 30]
    plan = plan_for(
        spec,
        measured=lambda *_: {(t.part, t.config_digest): t.status for t in searched},
        history=lambda *_: searched,
    )
    told = []

    def everything(space):
        told.append((yield tuple(space.candidates)))

    again = ReplayExecutor({("k", "", size): size for size in [4, *sizes]})
    list(sweep(plan, again, strategy=everything))
    assert [r.ref.config["size"] for r in again.runs] == [30]
    assert told == [(40.0, 400.0, 30.0, 200.0, 100.0, 600.0)]


def test_the_prior_is_asked_for_when_the_search_of_a_part_begins(plan_for):
    asked = []

    def priors(kernel, direction, part, signature, environment):
        asked.append((kernel, direction, part, len(executor.runs)))
        return Prior()

    executor = ReplayExecutor({("k", part, s): s for part in "ab" for s in (4, 8)})
    list(sweep(plan_for(two_launches("k", [8], [8]), priors=priors), executor))
    assert asked == [
        ("flash_attention/k", "fwd", "a", 1),
        ("flash_attention/k", "fwd", "b", 3),
    ]
