"""Scales: from numbers to places between 0 and 1, with ticks at round numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear or logarithmic scale.

    Attributes:
      low: the number at place 0.
      high: the number at place 1, above ``low``.
      is_log: whether equal steps are equal ratios.
    """

    low: float
    high: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """The place of ``value``; what lies outside is put at the end."""
        low, high, value = (math.log(max(v, 1e-300)) if self.is_log else v for v in (self.low, self.high, value))
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def ticks(self, most: int = 6) -> list[float]:
        """Round numbers on the scale, at most about ``most``."""
        steps = _log_ticks(self.low, self.high, most) if self.is_log else _linear_ticks(self.low, self.high, most)
        return [tick for tick in steps if self.low * (1 - 1e-9) <= tick <= self.high * (1 + 1e-9)]


def spanning(values: Sequence[float], *, is_log: bool = False, margin: float = 0.04) -> Scale:
    """A scale that holds finite ``values`` with a margin on both sides; one of some width for equal ones."""
    low, high = min(values), max(values)
    if is_log:
        width = max(math.log(high / low), 0.02)
        return Scale(low * math.exp(-margin * width), high * math.exp(margin * width), True)
    width = max(high - low, abs(high) * 1e-3, 1e-12)
    return Scale(low - margin * width, high + margin * width)


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(step * i, 12) for i in range(first, first + 2 * most) if step * i <= high * (1 + 1e-9)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    if high / low < 4:  # a linear ladder reads better within two octaves
        return _linear_ticks(low, high, most)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for digits in ((1, 2, 5), (1, 3), (1,)):
        found = [d * 10.0**p for p in range(first, last + 1) for d in digits]
        found = [tick for tick in found if low <= tick <= high]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]
