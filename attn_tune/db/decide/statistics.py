"""Comparison of two sets of samples: which is faster, and how surely. The bootstrap is seeded by name."""

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
# Random numbers drawn at a time: 96 KiB.
_WORDS = 12_000


def whole_median(samples: Sequence[int]) -> int:
    """The median, rounded down."""
    ordered = sorted(samples)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Time of ``a`` over time of ``b``: an estimate, and its bootstrap distribution.

    Attributes:
      ratio: the estimate.
      count: the smaller number of samples; of pairs, when they were interleaved.
      difference_ns: the estimated difference of the medians.
      extremes: the most that the samples allow, slowest ``a`` over fastest ``b``.
      chance: the probability that equal configs look this one-sided: of the sign test for pairs, of complete
        separation otherwise.
      bootstrap: draws the sorted log-ratios; called once, when a verdict depends on them.
    """

    ratio: float
    count: int
    difference_ns: float
    extremes: float
    chance: float
    bootstrap: Callable[[], Any] = field(compare=False, repr=False)

    @functools.cached_property
    def draws(self) -> Any:
        """The sorted log-ratios, an array."""
        return self.bootstrap()

    def quantile(self, p: float) -> float:
        """The bootstrap quantile of the ratio."""
        place = min(RESAMPLES - 1, max(0, int(p * RESAMPLES)))
        return math.exp(float(self.draws[place]))

    def a_wins(self, *, among: int = 1, noise: float = 0.0) -> bool:
        """Whether ``a`` is faster beyond noise, and by more than is worth having.

        ``among`` challengers share the chance of a false win (Bonferroni). The bootstrap of a median is too sure of
        itself when samples are few, so an exact test must agree with it: under 8 pairs nothing wins. ``noise`` is the
        share by which equal configs were seen to differ; a gain below it is none.
        """
        if self.chance > WIN_ALPHA / (2 * among):
            return False
        if 1 - self.ratio <= max(MIN_GAIN, noise) or -self.difference_ns <= MIN_GAIN_NS:
            return False
        # No resample has a greater median than the extremes have.
        return self.extremes < _SURELY_LESS or self.quantile(1 - WIN_ALPHA / (2 * among)) < 1

    def exceeds(self, bound: float) -> bool:
        """Whether ``upper`` is above ``bound``; cheaper to ask when it is far below."""
        return self.extremes >= bound * _SURELY_LESS and self.upper > bound

    @property
    def upper(self) -> float:
        """95 % upper bound of the ratio; the extremes where the samples are too few for a bootstrap."""
        return self.extremes if self.count < FEW else self.quantile(1 - REGRET_ALPHA)


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
        difference_ns=b * ratio - b,
        extremes=float(np.exp(ordered[-1])),
        chance=_sign_test(int(ordered.searchsorted(0.0)), len(pairs)),
        bootstrap=lambda: np.sort(_medians(ratios, seed)),
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


def _medians(values, seed: str):
    """Medians of ``RESAMPLES`` resamples of ``values``."""
    import numpy as np

    number = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=16).digest(), "little")
    count = len(values)
    ordered = np.sort(values)
    # A resample draws positions in the order taken, so that a seed means the same draws whatever the values.
    short = np.int16 if count <= 0x7FFF else np.int32
    rank = np.argsort(np.argsort(values, kind="stable")).astype(short)
    # Raw words: their stream is the same in every version of numpy.
    draw = np.random.PCG64(number).random_raw
    medians = np.empty(RESAMPLES)
    some = max(1, _WORDS // count)
    for first in range(0, RESAMPLES, some):
        words = draw(min(some, RESAMPLES - first) * count)
        words -= words // np.uint64(count) * np.uint64(count)  # the remainder, several times faster
        # Ranks instead of values: numpy sorts short integers many at a time.
        ranks = np.sort(rank[words.view(np.int64)].reshape(-1, count), axis=1)
        low, high = ranks[:, (count - 1) // 2], ranks[:, count // 2]
        medians[first : first + len(ranks)] = (ordered[low] + ordered[high]) / 2
    return medians
