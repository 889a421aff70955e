"""Effort: how many candidates of a space are evaluated, and which strategy chooses them."""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from attn_tune.schema.errors import UsageError
from attn_tune.tuner.plan.strategies.exhaustive import exhaustive
from attn_tune.tuner.plan.strategies.hinted import hinted_first
from attn_tune.tuner.plan.strategies.model import has_scikit_learn, require_scikit_learn
from attn_tune.tuner.plan.strategies.portfolio import portfolio
from attn_tune.tuner.plan.strategies.random_order import random_order
from attn_tune.tuner.plan.strategies.space import Strategy
from attn_tune.tuner.plan.strategies.surrogate import has_stalled, surrogate

# Up to so many candidates nothing is gained by choosing among them.
SMALL_SPACE = 48
_LEAST = 8


class StrategyName(enum.StrEnum):
    """The strategies, as they are asked for."""

    EXHAUSTIVE = "exhaustive"
    """Every config."""
    PORTFOLIO = "portfolio"
    """Configs that won elsewhere come first."""
    RANDOM = "random"
    """A random order."""
    SURROGATE = "surrogate"
    """The order of a model that is fitted to the times so far."""


class EffortName(enum.StrEnum):
    """The efforts, as they are asked for."""

    QUICK = "quick"
    """A small share of each space."""
    NORMAL = "normal"
    """A larger share of each space."""
    FULL = "full"
    """All of each space."""


STRATEGIES: dict[StrategyName, Strategy] = {
    StrategyName.EXHAUSTIVE: exhaustive,
    StrategyName.PORTFOLIO: portfolio,
    StrategyName.RANDOM: random_order,
    StrategyName.SURROGATE: surrogate,
}
_SHARES = {EffortName.QUICK: 0.05, EffortName.NORMAL: 0.15, EffortName.FULL: 1.0}
# For an absent device a config takes seconds of a core, not a fraction of one, and nothing is measured that
# a closer look could be worth: two thirds of the rest.
_COMPILED_SHARES = {**_SHARES, EffortName.NORMAL: 0.10}
_STRATEGY_OF = {
    EffortName.QUICK: StrategyName.PORTFOLIO,
    EffortName.NORMAL: StrategyName.SURROGATE,
    EffortName.FULL: StrategyName.EXHAUSTIVE,
}
_EFFORT_OF = {
    StrategyName.EXHAUSTIVE: EffortName.FULL,
    StrategyName.PORTFOLIO: EffortName.QUICK,
    StrategyName.RANDOM: EffortName.NORMAL,
    StrategyName.SURROGATE: EffortName.NORMAL,
}


@dataclass(frozen=True, kw_only=True)
class Effort:
    """A strategy and the ``share`` of a space that it may evaluate; the default is everything.

    Small spaces are evaluated whole. ``max_trials`` bounds every space. What was tried before counts.
    """

    strategy: StrategyName = StrategyName.EXHAUSTIVE
    share: float = 1.0
    max_trials: int | None = None

    @property
    def search(self) -> Strategy:
        """The strategy itself, after what was proposed."""
        return hinted_first(STRATEGIES[self.strategy])

    @property
    def tries_all(self) -> bool:
        """Whether every config is asked for, those of a kernel that is far behind another one too."""
        return self.strategy is StrategyName.EXHAUSTIVE

    def limit(self, size: int) -> int:
        """The number of ``size`` candidates that are evaluated at most, over all runs."""
        share = size if size <= SMALL_SPACE else max(_LEAST, math.ceil(self.share * size))
        return share if self.max_trials is None else min(share, self.max_trials)

    def owed(self, size: int, tried: Sequence[float], hinted: int = 0) -> int:
        """Candidates still to be evaluated when ``tried`` are the times of those that were, oldest first.

        ``hinted`` of the others were proposed: they are owed although the share is spent, up to ``max_trials``.
        """
        limit = self.limit(size)
        stops = self.strategy is StrategyName.SURROGATE and limit < size
        left = 0 if stops and has_stalled(tried) else limit - len(tried)
        room = hinted if self.max_trials is None else min(hinted, self.max_trials - len(tried))
        return max(0, left, room)


def make_effort(
    effort: str | None = None,
    strategy: str | None = None,
    max_trials: int | None = None,
    *,
    only_compiles: bool = False,
) -> Effort:
    """The effort that is asked for; what is left out follows from the other, or is ``normal``.

    A sweep that ``only_compiles`` evaluates less of each space with normal effort. Where neither effort nor strategy is
    given and scikit-learn is not installed, the portfolio chooses instead of the surrogate.

    Raises:
      UsageError: an exhaustive search with less than full effort.
    """
    if strategy is None and effort is None:
        chosen = EffortName.NORMAL
        name = StrategyName.SURROGATE if has_scikit_learn() else StrategyName.PORTFOLIO
    elif strategy is None:
        chosen = EffortName(effort or "")
        name = _STRATEGY_OF[chosen]
    else:
        name = StrategyName(strategy)
        chosen = EffortName(effort) if effort else _EFFORT_OF[name]
    if name is StrategyName.EXHAUSTIVE and chosen is not EffortName.FULL:
        raise UsageError(
            f"effort {chosen.value!r} tries only some candidates and strategy 'exhaustive' all; "
            "leave one of them out, or bound it with --max-trials"
        )
    shares = _COMPILED_SHARES if only_compiles else _SHARES
    made = Effort(strategy=name, share=shares[chosen], max_trials=max_trials)
    if name is StrategyName.SURROGATE and made.share < 1:
        require_scikit_learn()
    return made
