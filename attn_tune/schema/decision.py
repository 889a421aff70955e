"""A decision: what to run for one problem on one device, and why. Derived from trials; can be rebuilt."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from attn_tune.schema.device import Device
from attn_tune.schema.environment import Environment
from attn_tune.schema.signature import Signature


class Rule(enum.StrEnum):
    """Why this config.

    ``winner``: beats the incumbent beyond noise and the gain floor. ``tie``: nothing does, the incumbent stays.
    ``only``: one config was ever right. ``predicted``: compile-only, nothing was measured. ``heuristic``: the untuned
    config stays, said outright, so that no row of a near problem answers in its place (packs only).
    """

    WINNER = "winner"
    TIE = "tie"
    ONLY = "only"
    PREDICTED = "predicted"
    HEURISTIC = "heuristic"


def state_words(state: str) -> str:
    """The state of a row for people. ``heuristic`` alone would read as if nothing were known."""
    return "proven default" if state == Rule.HEURISTIC else state


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The winner for (op, direction, signature, device).

    Times are integer nanoseconds (medians). ``heuristic_ns`` is the untuned config of the same kernel, None when it
    never ran. ``gain`` is heuristic time over chosen time. ``regret_bound`` bounds chosen time over the best seen,
    minus one, at 95 %. ``ties`` are digests of configs that cannot be told from the winner. ``worst_error`` is the
    largest ratio of error to allowed error among the outputs. ``rank`` 0 is the winner across kernels; the best
    config of every other kernel is kept behind it, for callers that ask for that kernel by name. ``repeatable`` is
    False where runs of the config on equal inputs gave different bits; ``features`` is how many feature problems it
    passed. Both are None where that is unknown.
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

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """A decision that takes ``fields`` over, unchecked: a frozen class takes four times as long to set them."""
        decision = object.__new__(cls)
        object.__setattr__(decision, "__dict__", fields)
        return decision
