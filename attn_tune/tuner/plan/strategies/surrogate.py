"""Search guided by a model of the times, batch by batch."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attn_tune.tuner.plan.strategies.nearness import nearest
from attn_tune.tuner.plan.strategies.portfolio import portfolio_order
from attn_tune.tuner.plan.strategies.space import Search, Space, in_one_batch

if TYPE_CHECKING:
    from attn_tune.tuner.plan.strategies.model import TimeModel

LEAST_BATCH, MOST_BATCH = 4, 16
# About as many as there are cores to compile them: most of the next batch is among what is expected most of now.
HINTED = 16
# With less than this gained by the last two batches, more will hardly bring any.
_STALLED = 0.01
_LEAST_BEFORE_STALLING = 48


def surrogate(space: Space) -> Search:
    """Winners of other cases, then batch after batch of what the model of the times expects most of.

    Ends at the limit, or when it ``has_stalled``. A space that is to be evaluated whole is one batch, in the order of
    the portfolio.

    Raises:
      UsageError: scikit-learn is not installed, and the space is too large to be tried whole.
    """
    from attn_tune.tuner.plan.strategies.model import TimeModel

    if space.evaluations >= len(space.open):
        yield from in_one_batch(space, portfolio_order(space))
        return
    model = TimeModel(space)
    times = dict(space.tried)
    size = batch_size(len(space.by_digest))
    left = space.evaluations
    untuned = next(iter(space.by_digest))
    while left > 0 and not has_stalled(list(times.values())):
        seeds = _seeds(space, model, size + HINTED) if len(times) < size else []
        ranking = seeds or model.choose(times, size + HINTED)
        wanted = ranking[: min(size, left)]
        if untuned not in times:
            wanted = list(dict.fromkeys((untuned, *wanted)))[:left]
        if left > len(wanted):
            space.hint(space.batch([digest for digest in ranking if digest not in wanted]))
        seen = yield space.batch(wanted)
        times |= dict(zip(wanted, seen, strict=True))
        left -= len(wanted)


def batch_size(size: int) -> int:
    """About a thirtieth of a space of ``size``: enough to be compiled ahead, and several batches in any effort.

    It does not depend on the limit, so that more effort continues where less has ended.
    """
    return min(MOST_BATCH, max(LEAST_BATCH, size // 30))


def has_stalled(times: Sequence[float]) -> bool:
    """Whether the last third of ``times``, in the order measured, brought less than 1 %."""
    if len(times) < _LEAST_BEFORE_STALLING:
        return False
    before = min(times[: len(times) * 2 // 3])
    return math.isfinite(before) and min(times) > before * (1 - _STALLED)


def _seeds(space: Space, model: "TimeModel", size: int) -> list[str]:
    """The best of the portfolio; without one, the untuned candidate, some near to it and some far."""
    if nearest(space):
        return [d for d in portfolio_order(space) if d not in space.tried][:size]
    first = list(space.by_digest)[: max(1, size // 2)]
    far = model.spread_out(first, size - len(first))
    return [d for d in (*first, *far) if d not in space.tried]
