"""Strategies: what each promises in every space, and that they learn."""

import dataclasses
import importlib.util
import math

import pytest
from hypothesis import given, settings, strategies as st

from attn_tune.schema.config import config_digest
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind, Signature
from attn_tune.tuner.plan.replay import replay
from attn_tune.tuner.plan.strategies.effort import STRATEGIES, StrategyName, make_effort
from attn_tune.tuner.plan.strategies.nearness import distance
from attn_tune.tuner.plan.strategies.portfolio import portfolio_order
from attn_tune.tuner.plan.strategies.space import PastCase, Prior, Space

FIELDS = (
    Field(name="t", kind=FieldKind.SCALABLE, is_int=True),
    Field(name="h", kind=FieldKind.CATEGORICAL, is_int=True),
    Field(name="left", kind=FieldKind.SCALABLE, is_int=True, default=None),
)


def signature(t: int, h: int = 64, left: int | None = None) -> Signature:
    return Signature.build("op", 1, FIELDS, {"t": t, "h": h, "left": left})


def configs(count: int) -> list[dict]:
    return [{"block": 16 << (i % 5), "stages": 1 + i // 5, "order": "row" if i % 2 else "column"} for i in range(count)]


@st.composite
def spaces(draw) -> tuple[Space, dict[str, float]]:
    candidates = configs(draw(st.integers(0, 70)))
    time = st.one_of(st.integers(1, 10**6).map(float), st.just(math.inf))

    def times(chance: float) -> dict[str, float]:
        some = draw(st.randoms(use_true_random=False))
        return {config_digest(c): draw(time) for c in candidates if some.random() < chance}

    cases = tuple(
        PastCase(
            signature=signature(draw(st.integers(1, 9999)), draw(st.sampled_from([64, 128]))),
            times=times(0.3) | {"of another space": 1.0},
            same_device=draw(st.booleans()),
        )
        for _ in range(draw(st.integers(0, 2)))
    )
    space = Space(
        candidates=candidates,
        tried=times(0.1),
        limit=draw(st.one_of(st.none(), st.integers(0, 80))),
        signature=signature(draw(st.integers(1, 9999))),
        fields=FIELDS,
        prior=Prior(cases=cases),
        seed=draw(st.text(max_size=3)),
    )
    return space, times(0.8)


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=10, deadline=None)
@given(made=spaces())
def test_strategies_keep_their_promises_in_every_space(name, made):
    space, times = made
    seen = replay(STRATEGIES[name], space, times)
    digests = [config_digest(candidate) for candidate, _ in seen]
    assert len(set(digests)) == len(digests)
    assert set(digests) <= set(space.by_digest) - set(space.tried)
    assert len(digests) <= space.evaluations
    if name is not StrategyName.SURROGATE or space.evaluations == len(space.open):
        assert len(digests) == space.evaluations
    first = next(iter(space.by_digest), None)
    if digests and first not in space.tried:
        assert digests[0] == first
    again = dataclasses.replace(space)
    assert replay(STRATEGIES[name], again, times) == seen


def slope(candidates) -> dict[str, float]:
    """Fastest at block 256 and 6 stages, 20 % slower a step away; 9 stages and more fail."""
    return {
        config_digest(c): 100 * 1.2 ** (abs(math.log2(c["block"] / 256)) + abs(c["stages"] - 6))
        for c in candidates
        if c["stages"] < 9
    }


def space_of(candidates, **changes) -> Space:
    values = {"candidates": candidates, "signature": signature(4096), "fields": FIELDS}
    return Space(**(values | changes))


def test_winners_of_the_nearest_shapes_come_first():
    candidates = configs(60)
    digests = [config_digest(c) for c in candidates]

    def case(best: int, **fields) -> PastCase:
        times = {d: 100.0 + abs(i - best) for i, d in enumerate(digests)}
        return PastCase(signature=signature(**fields), times=times)

    prior = Prior(cases=(case(50, t=64), case(30, t=4096, h=128), case(40, t=2048)))
    order = portfolio_order(space_of(candidates, prior=prior))
    assert [digests.index(d) for d in order[:4]] == [0, 40, 30, 50]
    assert sorted(order) == sorted(digests)


def test_a_config_that_serves_many_comes_before_one_that_serves_few():
    candidates = configs(10)
    digests = [config_digest(c) for c in candidates]
    # Each case has a winner of its own outside this space; 7 is within 5 % everywhere, 5 is best in one case alone.
    cases = []
    for i in range(4):
        times = dict.fromkeys(digests, 300.0) | {"elsewhere": 90.0, digests[7]: 105.0}
        times[digests[1 + i]] = 104.0
        cases.append(PastCase(signature=signature(64 << i), times=times))
    order = portfolio_order(space_of(candidates, prior=Prior(cases=tuple(cases))))
    assert set(order[1:5]) == set(digests[1:5])
    assert order[5] == digests[7]


def test_without_a_prior_the_portfolio_is_the_kernels_own_order():
    candidates = configs(20)
    order = portfolio_order(space_of(candidates))
    assert order == [config_digest(c) for c in candidates]


def test_distance_counts_doublings_and_mismatches():
    here = signature(4096)
    assert distance(here, here, FIELDS) == 0
    assert distance(here, signature(1024), FIELDS) == 2
    assert distance(signature(1024), here, FIELDS) == 2
    assert distance(here, signature(4096, h=128), FIELDS) > distance(here, signature(512), FIELDS)
    assert distance(here, signature(4096, left=127), FIELDS) > 0


def test_the_surrogate_finds_the_bottom_of_a_slope_and_turns_away_from_what_fails():
    candidates = configs(100)
    times = slope(candidates)
    seen = replay(STRATEGIES[StrategyName.SURROGATE], space_of(candidates, limit=25), times)
    assert min(ns for _, ns in seen) <= 1.2 * min(times.values())
    failed = [math.isinf(ns) for _, ns in seen[8:]]
    assert sum(failed) / len(failed) < 0.45 < 0.55 < 1 - len(times) / len(candidates)


def test_more_effort_continues_where_less_ended():
    candidates = configs(100)
    times = slope(candidates)
    search = STRATEGIES[StrategyName.SURROGATE]
    less = replay(search, space_of(candidates, limit=8), times)
    more = replay(search, space_of(candidates, limit=16), times)
    assert more[:8] == less
    tried = {config_digest(c): ns for c, ns in less}
    assert replay(search, space_of(candidates, limit=8, tried=tried), times) == more[8:]


def test_the_surrogate_ends_when_nothing_comes_any_more():
    candidates = configs(400)
    flat = {config_digest(c): 100.0 for c in candidates}
    seen = replay(STRATEGIES[StrategyName.SURROGATE], space_of(candidates, limit=300), flat)
    assert 48 <= len(seen) < 100


@pytest.mark.parametrize(
    ("words", "strategy", "share"),
    [
        ({}, "surrogate", 0.15),
        ({"effort": "quick"}, "portfolio", 0.05),
        ({"effort": "full"}, "exhaustive", 1.0),
        ({"strategy": "random"}, "random", 0.15),
        ({"strategy": "exhaustive"}, "exhaustive", 1.0),
        ({"strategy": "portfolio", "effort": "full"}, "portfolio", 1.0),
        ({"strategy": "surrogate", "effort": "quick"}, "surrogate", 0.05),
    ],
)
def test_effort_and_strategy_follow_from_one_another(words, strategy, share):
    made = make_effort(**words)
    assert (made.strategy, made.share) == (strategy, share)


def test_exhaustive_with_less_than_everything_is_refused():
    with pytest.raises(UsageError, match="'quick' tries only some"):
        make_effort("quick", "exhaustive")


def test_without_scikit_learn_only_asking_for_it_is_an_error(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "sklearn" else find(name, *a))
    assert make_effort().strategy is StrategyName.PORTFOLIO
    assert make_effort().share == 0.15
    assert make_effort(only_compiles=True).share == 0.10
    assert make_effort("full", only_compiles=True).share == 1.0
    assert make_effort("full").strategy is StrategyName.EXHAUSTIVE
    for words in ({"effort": "normal"}, {"strategy": "surrogate"}):
        with pytest.raises(UsageError, match=r"pip install 'attn-tune\[search\]'"):
            make_effort(**words)
    with pytest.raises(UsageError, match="scikit-learn"):
        replay(STRATEGIES[StrategyName.SURROGATE], space_of(configs(60), limit=5), {})
