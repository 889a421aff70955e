"""Strategies, replayed on known times."""

import math

from hypothesis import given, strategies as st

from attn_tune.schema.config import config_digest
from attn_tune.tuner.strategies import exhaustive, random_sample, replay, sample

CANDIDATES = [{"size": s} for s in range(10)]
TIMES = {config_digest(c): float(c["size"]) for c in CANDIDATES[:8]}


def test_exhaustive_sees_everything_and_failures_as_infinite():
    seen = replay(exhaustive, CANDIDATES, TIMES)
    assert [c for c, _ in seen] == CANDIDATES
    assert [t for _, t in seen] == [*map(float, range(8)), math.inf, math.inf]


def test_a_strategy_that_listens_is_told_what_it_asked_for():
    def until_it_worsens(candidates):
        best = math.inf
        for candidate in candidates:
            seen = yield candidate
            if seen > best:
                return
            best = seen

    times = {config_digest({"size": s}): t for s, t in enumerate([5.0, 4.0, 3.0, 9.0, 1.0])}
    assert len(replay(until_it_worsens, CANDIDATES, times)) == 4


@given(st.integers(1, 20), st.text(max_size=5))
def test_a_sample_is_a_fixed_subset_in_order_with_the_first(count, seed):
    chosen = sample(CANDIDATES, count, seed)
    assert chosen == sample(CANDIDATES, count, seed)
    assert len(chosen) == min(count, len(CANDIDATES))
    assert chosen[0] == CANDIDATES[0]
    assert list(chosen) == [c for c in CANDIDATES if c in chosen]
    assert [c for c, _ in replay(random_sample(count, seed), CANDIDATES, TIMES)] == list(chosen)


def test_an_empty_space_is_no_trouble():
    assert replay(exhaustive, [], {}) == []
