"""Which of two sets of samples is faster, and how sure that is. Deterministic: the bootstrap is seeded by name."""

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

RESAMPLES = 2000
# Of a win: half of it is the chance that two equal configs are told apart, so that A/A stays a tie in over 99 %.
WIN_ALPHA = 0.01
REGRET_ALPHA = 0.05
MIN_GAIN = 0.01
_SURELY_LESS = 1 - 1e-9
MIN_GAIN_NS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Time of ``a`` over time of ``b``: the estimate, and its bootstrap distribution as sorted log-ratios.

    The bootstrap takes most of the time, so it is drawn when a verdict depends on it, and once.

    ``count`` is the smaller number of samples (pairs, when they were interleaved); ``extremes`` is the most that the
    samples allow, slowest ``a`` over fastest ``b``. ``chance`` is the probability that equal configs look this
    one-sided: of the sign test for pairs, of complete separation otherwise.
    """

    ratio: float
    count: int
    paired: bool
    difference_ns: float
    extremes: float
    chance: float
    bootstrap: Callable[[], Sequence[float]] = field(compare=False, repr=False)

    @property
    def draws(self) -> Sequence[float]:
        """The sorted log-ratios."""
        return self.bootstrap()

    def quantile(self, p: float) -> float:
        """The bootstrap quantile of the ratio."""
        draws = self.draws
        return math.exp(draws[min(len(draws) - 1, max(0, int(p * len(draws))))])

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
        return self.extremes < _SURELY_LESS or self.quantile(1 - WIN_ALPHA / (2 * among)) < 1

    def exceeds(self, bound: float) -> bool:
        """Whether ``upper`` is above ``bound``; cheaper to ask when it is far below."""
        return self.extremes >= bound * _SURELY_LESS and self.upper > bound

    @property
    def upper(self) -> float:
        """95 % upper bound of the ratio; the extremes where the samples are too few for a bootstrap."""
        if self.count < 8:
            return self.extremes
        return self.quantile(1 - REGRET_ALPHA)


def compare_paired(pairs: Sequence[tuple[int, int]], *, seed: str) -> Comparison:
    """Compares interleaved samples ``(a, b)`` by the median of their log-ratios."""
    import numpy as np

    logs = np.log(np.asarray(pairs, dtype=np.float64))
    ratios = logs[:, 0] - logs[:, 1]
    b = _median(sorted(pair[1] for pair in pairs))
    ratio = float(np.exp(_median(np.sort(ratios))))
    return Comparison(
        ratio=ratio,
        count=len(pairs),
        paired=True,
        difference_ns=b * ratio - b,
        extremes=float(np.exp(ratios.max())),
        chance=_sign_test(int((ratios < 0).sum()), len(pairs)),
        bootstrap=functools.cache(lambda: np.sort(_medians(ratios, seed)).tolist()),
    )


def compare_unpaired(a: Sequence[int], b: Sequence[int], *, seed: str) -> Comparison:
    """Compares two independent sets of samples by the log of the ratio of their medians."""
    import numpy as np

    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)

    def bootstrap() -> list[float]:
        draws = np.log(_medians(left, seed + "a")) - np.log(_medians(right, seed + "b"))
        return np.sort(draws).tolist()

    medians = float(_median(np.sort(left))), float(_median(np.sort(right)))
    return Comparison(
        ratio=medians[0] / medians[1],
        count=min(len(a), len(b)),
        paired=False,
        difference_ns=medians[0] - medians[1],
        extremes=max(a) / min(b),
        chance=1 / math.comb(len(a) + len(b), len(a)),
        bootstrap=functools.cache(bootstrap),
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
    order = np.argsort(values, kind="stable")
    rank = np.empty(count, dtype=np.int32)
    rank[order] = np.arange(count, dtype=np.int32)
    # Raw words: their stream is the same in every version of numpy.
    words = np.random.PCG64(number).random_raw(RESAMPLES * count)
    words -= words // np.uint64(count) * np.uint64(count)  # the remainder, several times faster
    # Ranks instead of values: numpy sorts short integers four at a time.
    ranks = rank[words.astype(np.int32)].reshape(RESAMPLES, count)
    ranks.sort(axis=1)
    ordered = values[order]
    return (ordered[ranks[:, (count - 1) // 2]] + ordered[ranks[:, count // 2]]) / 2
