"""Which of two sets of samples is faster, and how sure that is. Deterministic: the bootstrap is seeded by name."""

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

RESAMPLES = 2000
# Of a win: half of it is the chance that two equal configs are told apart, so that A/A stays a tie in over 99 %.
WIN_ALPHA = 0.01
REGRET_ALPHA = 0.05
MIN_GAIN = 0.01
MIN_GAIN_NS = 500
_SURELY_LESS = 1 - 1e-9
# Fewer samples are too few for a bootstrap.
FEW = 8
# For what is settled without drawing: pairs that floating point can count, the rounding of logarithms, -log(1e-30).
_MANY = 500
_ROUNDING = 1e-12
_CERTAIN = 70.0
# Random numbers drawn at a time: 96 KiB.
_WORDS = 12_000


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Time of ``a`` over time of ``b``: the estimate, and its bootstrap distribution as sorted log-ratios.

    The bootstrap takes most of the time, so it is drawn when a verdict depends on it, and once.

    ``count`` is the smaller number of samples (pairs, when they were interleaved); ``extremes`` is the most that the
    samples allow, slowest ``a`` over fastest ``b``. ``chance`` is the probability that equal configs look this
    one-sided: of the sign test for pairs, of complete separation otherwise. ``values_above`` counts the log-ratios
    above a number; None without pairs.
    """

    ratio: float
    count: int
    paired: bool
    difference_ns: float
    extremes: float
    chance: float
    bootstrap: Callable[[], Any] = field(compare=False, repr=False)
    values_above: Callable[[float], int] | None = field(default=None, compare=False, repr=False)

    @functools.cached_property
    def draws(self) -> Any:
        """The sorted log-ratios, an array."""
        return self.bootstrap()

    def quantile(self, p: float) -> float:
        """The bootstrap quantile of the ratio."""
        return math.exp(float(self.draws[_place(p)]))

    def a_wins(self, *, among: int = 1, noise: float = 0.0) -> bool:
        """True when ``a`` is faster beyond noise and by more than is worth having.

        ``among`` challengers share the chance of a false win (Bonferroni). The bootstrap of a median is too sure of
        itself when samples are few, so an exact test must agree with it: under 8 pairs nothing wins. ``noise`` is the
        share by which equal configs were seen to differ; a gain below it is none.
        """
        if self.chance > WIN_ALPHA / (2 * among):
            return False
        gain = 1 - self.ratio
        if gain <= max(MIN_GAIN, noise) or -self.difference_ns <= MIN_GAIN_NS:
            return False
        # No resample has a greater median than the extremes have.
        if self.extremes < _SURELY_LESS:
            return True
        p = 1 - WIN_ALPHA / (2 * among)
        return self._is_surely_below(1.0, p) or self.quantile(p) < 1

    def exceeds(self, bound: float) -> bool:
        """Whether ``upper`` is above ``bound``; cheaper to ask when it is far below."""
        if self.extremes < bound * _SURELY_LESS:
            return False
        if self.count >= FEW and self._is_surely_below(bound, 1 - REGRET_ALPHA):
            return False
        return self.upper > bound

    @property
    def upper(self) -> float:
        """95 % upper bound of the ratio; the extremes where the samples are too few for a bootstrap."""
        return self.extremes if self.count < FEW else self.quantile(1 - REGRET_ALPHA)

    def _is_surely_below(self, bound: float, p: float) -> bool:
        """True when ``quantile(p)`` must be below ``bound``, found without drawing.

        The median of one resample exceeds a number with a probability that is known exactly. Where the draws would
        contradict it with a chance under 1e-30 (Chernoff's bound), they are not made.
        """
        if self.values_above is None or self.count > _MANY:
            return False
        chance = _median_exceeds(self.values_above(math.log(bound) - _ROUNDING), self.count)
        needed = 1 - _place(p) / RESAMPLES
        return chance < needed and RESAMPLES * _divergence(needed, chance) > _CERTAIN


def compare_paired(pairs: Sequence[tuple[int, int]], *, seed: str) -> Comparison:
    """Compares interleaved samples ``(a, b)`` by the median of their log-ratios."""
    import numpy as np

    first, second = zip(*pairs, strict=True)
    # Flat tuples become arrays twice as fast as pairs do.
    ratios = np.log(np.array(first, np.float64)) - np.log(np.array(second, np.float64))
    ordered = np.sort(ratios)
    b = _median(sorted(second))
    ratio = float(np.exp(_median(ordered)))
    return Comparison(
        ratio=ratio,
        count=len(pairs),
        paired=True,
        difference_ns=b * ratio - b,
        extremes=float(np.exp(ordered[-1])),
        chance=_sign_test(int(ordered.searchsorted(0.0)), len(pairs)),
        bootstrap=lambda: np.sort(_medians(ratios, seed)),
        values_above=lambda limit: len(pairs) - int(ordered.searchsorted(limit, side="right")),
    )


def compare_unpaired(a: Sequence[int], b: Sequence[int], *, seed: str) -> Comparison:
    """Compares two independent sets of samples by the log of the ratio of their medians."""
    import numpy as np

    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)

    def bootstrap():
        draws = np.log(_medians(left, seed + "a")) - np.log(_medians(right, seed + "b"))
        return np.sort(draws)

    medians = float(_median(np.sort(left))), float(_median(np.sort(right)))
    return Comparison(
        ratio=medians[0] / medians[1],
        count=min(len(a), len(b)),
        paired=False,
        difference_ns=medians[0] - medians[1],
        extremes=max(a) / min(b),
        chance=1 / math.comb(len(a) + len(b), len(a)),
        bootstrap=bootstrap,
    )


def _median(ordered):
    """The median of sorted values; np.median takes twenty times as long for a few."""
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


@functools.cache
def _sign_test(wins: int, count: int) -> float:
    """Probability of ``wins`` or more heads among ``count`` tosses."""
    return sum(math.comb(count, k) for k in range(wins, count + 1)) / 2**count


def _place(p: float) -> int:
    """Which of the sorted draws is the quantile."""
    return min(RESAMPLES - 1, max(0, int(p * RESAMPLES)))


@functools.cache
def _median_exceeds(above: int, count: int) -> float:
    """At most how likely the median of a resample is above a number that ``above`` of ``count`` values are above."""
    share = above / count
    return sum(
        math.comb(count, k) * share**k * (1 - share) ** (count - k)
        for k in range((count + 1) // 2, count + 1)
    )


def _divergence(a: float, b: float) -> float:
    """Kullback-Leibler divergence of coins that fall with probability ``a`` and ``b`` < ``a``, in nats."""
    if b == 0:
        return math.inf
    return a * math.log(a / b) + ((1 - a) * math.log((1 - a) / (1 - b)) if a < 1 else 0)


def _medians(values, seed: str):
    """Medians of ``RESAMPLES`` resamples of ``values``."""
    import numpy as np

    number = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=16).digest(), "little")
    count = len(values)
    order = np.argsort(values, kind="stable")
    short = np.int16 if count <= 0x7FFF else np.int32
    rank = np.empty(count, dtype=short)
    rank[order] = np.arange(count, dtype=short)
    ordered = values[order]
    low, high = (count - 1) // 2, count // 2
    # Raw words: their stream is the same in every version of numpy.
    draw = np.random.PCG64(number).random_raw
    medians = np.empty(RESAMPLES)
    # A few resamples at a time: fresh memory for all of them would cost as much as the rest.
    some = max(1, _WORDS // count)
    for first in range(0, RESAMPLES, some):
        words = draw(min(some, RESAMPLES - first) * count)
        words -= words // np.uint64(count) * np.uint64(count)  # the remainder, several times faster
        # Ranks instead of values: numpy sorts short integers many at a time.
        ranks = rank.take(words.view(np.int64)).reshape(-1, count)
        ranks.sort(axis=1)
        medians[first : first + len(ranks)] = ordered[ranks[:, low]] + ordered[ranks[:, high]]
    return medians / 2
