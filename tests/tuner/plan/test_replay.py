"""Replay: regret curves, and that the strategies reach the project's target on a model of the Triton flash kernel."""

import math

import pytest

from attn_tune.schema.config import config_digest
from attn_tune.tuner.plan.replay import Hints, leave_one_shape_out, quantile, regret_curve, replay
from attn_tune.tuner.plan.strategies.effort import STRATEGIES, StrategyName
from attn_tune.tuner.plan.strategies.space import Space
from tests.chosen import exhaustive
from tests.tuner.plan.flash_model import recorded_cases

PARTS = ["", *map(exhaustive, ("dq", "dkv"))]
CANDIDATES = [{"size": s} for s in range(10)]
TIMES = {config_digest(c): 100.0 - c["size"] for c in CANDIDATES[:8]}


def test_a_replay_sees_failures_as_infinite():
    seen = replay(STRATEGIES[StrategyName.EXHAUSTIVE], Space(candidates=CANDIDATES), TIMES)
    assert [c for c, _ in seen] == CANDIDATES
    assert [t for _, t in seen] == [*(100.0 - s for s in range(8)), math.inf, math.inf]


def test_a_curve_is_the_best_so_far_over_the_best_of_all():
    case = recorded_cases()[0]
    curve = regret_curve(STRATEGIES[StrategyName.EXHAUSTIVE], case, case.space([], limit=len(case.candidates)))
    first = case.times[config_digest(case.candidates[0])]
    assert curve.regrets[0] == first / min(case.times.values()) - 1
    assert list(curve.regrets) == sorted(curve.regrets, reverse=True)
    assert curve.regrets[-1] == curve.at(1.0) == 0.0
    assert curve.at(0.0) == curve.regrets[0]
    assert curve.after(0) == math.inf


def test_a_shape_is_no_prior_of_itself():
    cases = recorded_cases()
    seen = []

    def spy(space):
        seen.append((space.signature, {case.signature for case in space.prior.cases}))
        yield space.candidates[:1]

    leave_one_shape_out(spy, cases)
    shapes = {case.signature for case in cases}
    assert len(seen) == len(cases)
    assert all(told == shapes - {signature} for signature, told in seen)


def test_the_quantile_is_one_of_the_values():
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0], 0.95) == 3.0
    assert quantile([float(i) for i in range(1, 101)], 0.95) == 95.0


def reaches_target(name: StrategyName, part: str, every: int = 1) -> bool:
    """At 15 % of the evaluations: median regret at most 1 %, p95 at most 3 %."""
    cases = [case for case in recorded_cases() if case.part == part]
    told = {case.signature for case in cases}
    assert len(told) >= 12
    curves = []
    for case in cases[::every]:
        space = case.space(cases, limit=math.ceil(0.15 * len(case.candidates)))
        curves.append(regret_curve(STRATEGIES[name], case, space))
    regrets = [curve.regrets[-1] for curve in curves]
    return quantile(regrets, 0.5) <= 0.01 and quantile(regrets, 0.95) <= 0.03


@pytest.mark.parametrize("part", PARTS)
def test_strategies_that_learn_reach_the_target_and_those_that_do_not_fail_it(part):
    assert reaches_target(StrategyName.PORTFOLIO, part)
    assert reaches_target(StrategyName.SURROGATE, part, every=8)
    assert not reaches_target(StrategyName.RANDOM, part)
    assert not reaches_target(StrategyName.EXHAUSTIVE, part)


def test_the_surrogate_adapts_without_a_near_shape_and_the_portfolio_cannot():
    cases = [case for case in recorded_cases() if case.part == ""]
    mean = {}
    for name in (StrategyName.PORTFOLIO, StrategyName.SURROGATE):
        regrets = []
        for kind in dict.fromkeys(map(_kind, cases)):
            case = next(c for c in cases if _kind(c) == kind)
            far = [other for other in cases if _kind(other) != kind]
            space = case.space(far, limit=math.ceil(0.15 * len(case.candidates)))
            regrets.append(regret_curve(STRATEGIES[name], case, space).regrets[-1])
        mean[name] = sum(regrets) / len(regrets)
    assert mean[StrategyName.SURROGATE] < 0.75 * mean[StrategyName.PORTFOLIO]


def _kind(case) -> tuple:
    values = case.signature.values
    return values["h"], values.get("left")


@pytest.mark.parametrize("hints", Hints)
def test_hints_have_every_time_or_only_the_winner_or_none(hints):
    case = recorded_cases()[0]
    told = case.past(hints).times
    best = min(case.times, key=lambda digest: (case.times[digest], digest))
    if hints is Hints.TIMES:
        assert {d: ns for d, ns in told.items() if math.isfinite(ns)} == dict(case.times)
    else:
        assert told == ({best: case.best_ns} if hints is Hints.WINNERS else {})


@pytest.mark.parametrize("part", PARTS)
def test_winners_alone_are_worth_more_than_nothing(part):
    cases = [case for case in recorded_cases() if case.part == part]
    strategy = STRATEGIES[StrategyName.PORTFOLIO]
    worst = {
        hints: quantile(
            [c.at(0.15) for c in leave_one_shape_out(strategy, cases, share=0.15, hints=hints)],
            0.95,
        )
        for hints in Hints
    }
    assert worst[Hints.WINNERS] <= 0.5 * worst[Hints.NONE]
