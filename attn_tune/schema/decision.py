"""A decision: what to run for one problem on one device, and why. Derived from trials; can be rebuilt."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attn_tune.schema.device import Device
from attn_tune.schema.environment import Environment
from attn_tune.schema.signature import Signature

# A smaller gain is a tie, large share or not.
MIN_GAIN_NS = 500


class Rule(enum.StrEnum):
    """The reason for a config."""

    WINNER = "winner"
    """Beats the untuned config, or all others if that is not right, beyond noise and by more than is worth having."""
    TIE = "tie"
    """Nothing beats the untuned config, which stays; or that is not right, and the fastest does not beat all others."""
    ONLY = "only"
    """No other config was ever right."""
    SEARCH = "search"
    """The fastest that a search has found so far: no final has compared it with others yet."""
    PREDICTED = "predicted"
    """Predicted to be fastest; nothing was measured."""
    HEURISTIC = "heuristic"
    """The untuned config stays, as a row, so that no row of a near problem answers in its place (packs only)."""


class Proof(enum.StrEnum):
    """The proof behind a stored config: one for the release gate, lookups, merges of packs and badges."""

    PROVEN = "proven"
    """It was compared with the reference, and passed feature problems."""
    UNCOUNTED = "uncounted"
    """It was compared with the reference; the number of feature problems that it passed is unknown."""
    UNPROVEN = "unproven"
    """It ran no feature problem."""
    NONE = "none"
    """It was never compared with the reference."""

    @classmethod
    def of(cls, worst_error: float | None, features: int | None) -> "Proof":
        """The proof of a config with this worst error, None where it was not compared, and this number of features."""
        if features == 0:
            return cls.UNPROVEN
        if worst_error is None:
            return cls.NONE
        return cls.PROVEN if features else cls.UNCOUNTED


def state_words(state: str) -> str:
    """The state of a row for people. ``heuristic`` alone would read as if nothing were known."""
    return "proven untuned config" if state == Rule.HEURISTIC else state


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The best config of a kernel for (op, direction, signature, device). Times are integer nanoseconds.

    Attributes:
      op: the op.
      direction: the direction.
      signature: the problem.
      device: the device.
      environment: the software that it was decided for.
      kernel: ``"op/name"``.
      config: the knobs, as plain data.
      rule: the reason for the config.
      median_ns: its median; None where nothing was measured.
      heuristic_ns: the median of the kernel's untuned config, None if that was not right.
      gain: ``heuristic_ns`` over ``median_ns``.
      regret_bound: at 95 %, the chosen time over the best seen is at most one plus this.
      worst_error: the largest ratio of error to allowed error among the outputs.
      ties: digests of the configs that are as fast within the noise.
      samples: the number of samples behind ``median_ns``.
      trials: the number of trials of the kernel.
      repeatable: False where runs of the config on equal inputs gave different bits, None where that is unknown.
      features: the number of feature problems that it passed, None where that is unknown.
      contract: the version of the op's contract.
      rank: 0 is the winner across kernels; the best of every other kernel stands behind it, for callers that name one.
    """

    op: str
    direction: str
    signature: Signature
    device: Device
    environment: Environment
    kernel: str
    config: Mapping[str, Any]
    rule: Rule
    median_ns: int | None
    heuristic_ns: int | None = None
    gain: float | None = None
    regret_bound: float | None = None
    worst_error: float | None = None
    ties: tuple[str, ...] = ()
    samples: int = 0
    trials: int = 0
    repeatable: bool | None = None
    features: int | None = None
    contract: int = 1
    rank: int = 0

    @property
    def proof(self) -> Proof:
        """The proof of its config."""
        return Proof.of(self.worst_error, self.features)
