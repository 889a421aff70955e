"""Comparison of two sets of samples: which is faster, and how surely. The bootstrap is seeded by name."""

import functools
import hashlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attn_tune.schema.decision import MIN_GAIN_NS

if TYPE_CHECKING:
    import numpy as np

RESAMPLES = 2000
# Of a win: half of it is the chance that two equal configs seem to differ, so that A/A stays a tie in over 99 %.
WIN_ALPHA = 0.01
REGRET_ALPHA = 0.05
MIN_GAIN = 0.01
# Fewer samples are too few for a bootstrap.
FEW = 8


def whole_median(samples: Sequence[int]) -> int:
    """The median, rounded down."""
    return int(statistics.median(samples))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Time of ``a`` over time of ``b``: an estimate, and its bootstrap distribution.

    Attributes:
      ratio: the estimate.
      count: the smaller number of samples; of pairs, when they were interleaved.
      difference_ns: the estimated difference of the medians.
      extremes: the most that the samples allow, slowest ``a`` over fastest ``b``.
      least: the least that they allow, fastest ``a`` over slowest ``b``.
      chance: the probability that equal configs look this one-sided: of the sign test for pairs, of complete
        separation otherwise.
      samples: the log-ratios of pairs, or the samples of ``a`` and of ``b``, by the seed of their resamples.
    """

    ratio: float
    count: int
    difference_ns: float
    extremes: float
    least: float
    chance: float
    samples: "dict[str, np.ndarray]" = field(compare=False, repr=False)

    @functools.cached_property
    def draws(self) -> "np.ndarray":
        """The sorted log-ratios of the resamples."""
        import numpy as np

        medians = [_medians(values, seed) for seed, values in self.samples.items()]
        return np.sort(medians[0] if len(medians) == 1 else np.log(medians[0]) - np.log(medians[1]))

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
        alpha = WIN_ALPHA / (2 * among)
        return (
            self.chance <= alpha
            and 1 - self.ratio > max(MIN_GAIN, noise)
            and -self.difference_ns > MIN_GAIN_NS
            # No resample has a greater median than the extremes have, so most wins need no bootstrap.
            and (self.extremes < 1 or self.quantile(1 - alpha) < 1)
        )

    @property
    def upper(self) -> float:
        """95 % upper bound of the ratio."""
        return self.bound(1 - REGRET_ALPHA)

    def bound(self, p: float) -> float:
        """Upper bound of the ratio at ``p``; the extremes where the samples are too few for a bootstrap."""
        return self.extremes if self.count < FEW else self.quantile(p)


def compare_paired(pairs: Sequence[tuple[int, int]], *, seed: str) -> Comparison:
    """Compares interleaved samples ``(a, b)`` by the median of their log-ratios."""
    import numpy as np

    a, b = np.array(pairs, np.float64).T
    ratios = np.log(a) - np.log(b)
    ratio = float(np.exp(np.median(ratios)))
    return Comparison(
        ratio=ratio,
        count=len(pairs),
        difference_ns=float(np.median(b)) * (ratio - 1),
        extremes=float(np.exp(ratios.max())),
        least=float(np.exp(ratios.min())),
        chance=_sign_test(int((ratios < 0).sum()), len(pairs)),
        samples={seed: ratios},
    )


def compare_unpaired(a: Sequence[int], b: Sequence[int], *, seed: str) -> Comparison:
    """Compares two independent sets of samples by the log of the ratio of their medians."""
    import numpy as np

    left, right = np.array(a, np.float64), np.array(b, np.float64)
    medians = float(np.median(left)), float(np.median(right))
    return Comparison(
        ratio=medians[0] / medians[1],
        count=min(len(a), len(b)),
        difference_ns=medians[0] - medians[1],
        extremes=max(a) / min(b),
        least=min(a) / max(b),
        chance=1 / math.comb(len(a) + len(b), len(a)),
        samples={f"{seed}a": left, f"{seed}b": right},
    )


def rank_sum(a: Sequence[int], b: Sequence[int]) -> float:
    """Two-sided probability that equal configs give ranks as far apart as those of ``a`` and ``b``.

    The test of Mann and Whitney in its normal approximation, with the correction for ties: where the samples are
    completely apart it is above the exact probability.
    """
    import numpy as np

    left, right = len(a), len(b)
    _, inverse, counts = np.unique(np.array([*a, *b]), return_inverse=True, return_counts=True)
    # Equal samples share the mean of their ranks.
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    total = left + right
    variance = left * right / 12 * (total + 1 - float((counts**3 - counts).sum()) / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    distance = abs(float(ranks[:left].sum()) - left * (total + 1) / 2) - 0.5
    return min(1.0, math.erfc(max(0.0, distance) / math.sqrt(2 * variance)))


def holm(chances: Sequence[float], level: float) -> list[bool]:
    """Whether each of several findings stays, so that any is false with a probability of at most ``level``.

    ``chances`` are their two-sided probabilities under chance alone. The least must be under the level over their
    number, the next under the level over one less, and so on; what follows the first that is not falls with it
    (S. Holm, 1979).
    """
    kept = [False] * len(chances)
    for left, place in zip(
        range(len(chances), 0, -1), sorted(range(len(chances)), key=chances.__getitem__), strict=True
    ):
        if chances[place] > level / left:
            break
        kept[place] = True
    return kept


@functools.cache
def _sign_test(wins: int, count: int) -> float:
    """Probability of ``wins`` or more heads among ``count`` tosses."""
    return sum(math.comb(count, k) for k in range(wins, count + 1)) / 2**count


def _medians(values: "np.ndarray", seed: str) -> "np.ndarray":
    """Medians of ``RESAMPLES`` resamples of ``values``."""
    import numpy as np

    number = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=16).digest(), "little")
    count = len(values)
    # Raw words: their stream is the same in every version of numpy.
    places = np.random.PCG64(number).random_raw((RESAMPLES, count)) % np.uint64(count)
    # Ranks instead of values: numpy sorts short integers several times faster.
    rank = np.argsort(np.argsort(values, kind="stable")).astype(np.min_scalar_type(count))
    middle = np.sort(rank[places], axis=1)[:, [(count - 1) // 2, count // 2]]
    return np.sort(values)[middle].mean(axis=1)
