"""Comparisons of samples: noise is no win, and a real gain is found."""

import numpy as np
import pytest

from attn_tune.db.decide.statistics import compare_paired, compare_unpaired


def noisy(rng, median, count, spread=0.03):
    """Log-normal samples with a drift that both sides of a round share."""
    return median * np.exp(rng.normal(0, spread, count))


def rounds(rng, ratio, count=24):
    """Interleaved samples ``(a, b)`` with a = ratio * b, common drift and own noise."""
    drift = np.exp(np.cumsum(rng.normal(0, 0.02, count)))
    a = noisy(rng, 200_000 * ratio, count) * drift
    b = noisy(rng, 200_000, count) * drift
    return [(int(x), int(y)) for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("count", [8, 24])
def test_equal_configs_tie_in_more_than_99_of_100(count):
    rng = np.random.default_rng(0)
    wins = sum(compare_paired(rounds(rng, 1.0, count), seed=str(i)).a_wins() for i in range(600))
    assert wins < 6


def test_equal_configs_tie_without_pairs_too():
    rng = np.random.default_rng(1)
    wins = 0
    for i in range(300):
        a, b = ([int(x) for x in noisy(rng, 200_000, 24)] for _ in range(2))
        wins += compare_unpaired(a, b, seed=str(i)).a_wins()
    assert wins < 3


def test_many_equal_challengers_share_one_chance():
    rng = np.random.default_rng(2)
    families = 60
    false_wins = 0
    for i in range(families):
        compared = [compare_paired(rounds(rng, 1.0), seed=f"{i} {j}") for j in range(8)]
        false_wins += any(c.a_wins(among=8) for c in compared)
    assert false_wins <= 2


def test_a_planted_gain_of_5_percent_is_found_under_drift():
    rng = np.random.default_rng(3)
    found = [compare_paired(rounds(rng, 0.95, 40), seed=str(i)) for i in range(100)]
    assert sum(c.a_wins() for c in found) > 90
    assert all(abs(c.ratio - 0.95) < 0.04 for c in found)


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([(100_000, 100_000)] * 30, "identical"),
        ([(99_500, 100_000)] * 30, "half a percent, however sure"),
        ([(4_600, 5_000)] * 30, "8 %, but 0.4 us"),
        ([(50_000, 100_000)] * 7, "too few pairs to exclude chance"),
        ([(105_000, 100_000)] * 30, "slower"),
    ],
)
def test_a_gain_not_worth_having_does_not_win(pairs, why):
    assert not compare_paired(pairs, seed="").a_wins(), why


def test_clear_wins_win():
    pairs = [(90_000 + i, 100_000 + i) for i in range(8)]
    assert compare_paired(pairs, seed="").a_wins()
    assert compare_unpaired([a for a, _ in pairs], [b for _, b in pairs], seed="").a_wins()


def test_the_upper_bound_covers_the_true_ratio():
    rng = np.random.default_rng(4)
    covered = sum(compare_paired(rounds(rng, 1.03), seed=str(i)).upper > 1.03 for i in range(200))
    assert covered > 180
    few = compare_unpaired([1000], [500, 2000], seed="")
    assert few.upper == 2.0


def test_the_same_samples_and_name_give_the_same_numbers():
    pairs = rounds(np.random.default_rng(5), 0.99)
    first, second = (compare_paired(pairs, seed="x") for _ in range(2))
    assert first == second
    assert (first.draws == second.draws).all()
    assert (first.draws != compare_paired(pairs, seed="y").draws).any()
