"""A config that no feature problem can be run with goes nowhere, unless a sweep asks for it."""

import dataclasses

import pytest

from attn_tune.db import Database, RecordedTrial, decide
from attn_tune.schema.trial import Stage, Status, Trial
from attn_tune.tuner.plan.planner import make_plan
from attn_tune.tuner.protocol import Outcome
from attn_tune.tuner.run.sweep import sweep
from tests.db.facts import begin
from tests.tuner.replay import ReplayExecutor, one_launch

# Four pairs of lengths, one whose lse is not read, and one with several sequences and heads.
PASSED = 6
RACE = {("k", "", s): us * 1000 for s, us in [(4, 100), (5, 80), (6, 60)]}


def only_large_take_it(problem, device, config):
    """Refuse every feature problem for sizes up to 5; every size takes the case itself."""
    return "too small" if problem.kv_len != 16 and config.size < 6 else None


def nothing_takes_it(problem, device, config):
    return "no feature problem" if problem.kv_len != 16 else None


@pytest.fixture
def swept(point, device, environment):
    def swept(infeasible, executor=None, known=(), **options):
        plan = make_plan(
            [point],
            kernels=[one_launch("k", [5, 6], infeasible=infeasible)],
            device=device,
            environment=environment,
            directions=["fwd"],
            measured=lambda *_: {
                (t.part, t.config_digest): t.status for t in sorted(known, key=lambda t: t.started_us)
            },
            history=lambda *_: list(known),
            **options,
        )
        events = list(sweep(plan, executor or ReplayExecutor(RACE)))
        return [event for event in events if isinstance(event, Trial)]

    return swept


def statuses(trials):
    return [(t.config["size"], t.status, t.stage, t.features) for t in trials]


def decided(trials):
    return decide([RecordedTrial(1, trial) for trial in trials])


def test_finals_say_how_many_problems_were_passed(swept):
    trials = swept(lambda problem, device, config: None)
    finals = [t for t in trials if t.stage is Stage.FINAL]
    assert {t.features for t in finals} == {PASSED}
    assert {t.features for t in trials if t.stage is Stage.SEARCH} == {None}
    (decision,) = decided(trials)
    assert (decision.config["size"], decision.features) == (6, PASSED)


def test_without_a_problem_a_config_is_unproven_and_nothing_is_decided(swept):
    trials = swept(nothing_takes_it)
    unproven = [t for t in trials if t.status is Status.UNPROVEN]
    assert [t.config["size"] for t in unproven] == [4, 6, 5]
    assert {t.features for t in unproven} == {0}
    assert all(t.measurement and "it takes no feature problem" in t.reason for t in unproven)
    assert not any(t.stage is Stage.FINAL for t in trials)
    assert decided(trials) == ()


def test_the_untuned_config_and_the_winner_are_looked_at_one_by_one(swept):
    trials = swept(only_large_take_it)
    assert statuses(trials)[-1] == (6, Status.OK, Stage.FINAL, PASSED)
    (decision,) = decided(trials)
    assert (decision.config["size"], decision.heuristic_ns) == (6, None)


def test_problems_that_are_refused_when_they_are_compiled_do_not_count(swept):
    class Full(ReplayExecutor):
        def run(self, request):
            if request.ref.problem is not None:
                return Outcome(status=Status.OUT_OF_RESOURCES, reason="shared memory is full")
            return super().run(request)

    trials = swept(lambda problem, device, config: None, Full(RACE))
    assert [t.status for t in trials].count(Status.UNPROVEN) == 3
    assert decided(trials) == ()


def test_unproven_configs_are_given_on_request_with_a_count_of_none(swept):
    trials = swept(nothing_takes_it, allow_unproven=True)
    assert {t.features for t in trials if t.stage is Stage.FINAL} == {0}
    assert not any(t.status is Status.UNPROVEN for t in trials)
    (decision,) = decided(trials)
    assert (decision.config["size"], decision.features) == (6, 0)


def test_a_resumed_sweep_reports_an_unproven_config_once_and_heeds_a_later_permission(swept):
    first = swept(nothing_takes_it)
    assert swept(nothing_takes_it, known=first) == []
    later = swept(nothing_takes_it, known=first, allow_unproven=True)
    assert {(t.stage, t.features) for t in later} == {(Stage.FINAL, 0)}
    (decision,) = decided([*first, *later])
    assert decision.features == 0
    assert swept(nothing_takes_it, known=[*first, *later], allow_unproven=True) == []


@pytest.mark.parametrize("padding", [0, 100])
def test_the_database_decides_the_same(swept, tmp_path, padding):
    """Of a problem with many trials it reads a few only."""
    first = [
        dataclasses.replace(t, environment=dataclasses.replace(t.environment, source_hash="b2:s"))
        for t in swept(nothing_takes_it)
    ]
    others = [dataclasses.replace(first[0], config={"size": 100 + i}, is_heuristic=False) for i in range(padding)]
    with Database.open(tmp_path / "lab.db", create=True) as database:
        run = begin(database)
        for one in (*first, *others):
            database.record(run, one)
        database.rebuild_decisions()
        found = list(database.decisions())
    # The search timed sizes 6 and 5 faster than all others.
    assert {d.config["size"] for d in found} <= {c.config["size"] for c in others}
    assert len(found) == bool(padding)
