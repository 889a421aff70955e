"""Search guided by a model of the times, batch by batch."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attn_tune.tuner.strategies.nearness import nearest
from attn_tune.tuner.strategies.portfolio import portfolio_order
from attn_tune.tuner.strategies.space import Search, Space, in_one_batch

if TYPE_CHECKING:
    import numpy as np

LEAST_BATCH, MOST_BATCH = 4, 16
# With less than this gained by the last two batches, more will hardly bring any.
_STALLED = 0.01
_LEAST_BEFORE_STALLING = 48


def surrogate(space: Space) -> Search:
    """What won elsewhere, then batch after batch of what a forest of trees expects the most of.

    Ends at the limit, or when it ``has_stalled``. A space that is to be evaluated whole is one batch, in the order of
    the portfolio.

    Raises:
      UsageError: scikit-learn is not installed, and the space is too large to be tried whole.
    """
    from attn_tune.tuner.strategies.model import TimeModel

    if space.evaluations >= len(space.open):
        yield from in_one_batch(space, portfolio_order(space))
        return
    model = TimeModel(space)
    times = dict(space.tried)
    size = batch_size(space.evaluations + len(times))
    left = space.evaluations
    wanted = _seeds(space, size) if len(times) < size else []
    while left > 0:
        wanted = (wanted or _promising(space, model.expected_gain(times), times, size))[:left]
        if not wanted:
            return
        seen = yield space.batch(wanted)
        times |= dict(zip(wanted, seen, strict=True))
        left -= len(wanted)
        wanted = []
        if has_stalled(list(times.values())):
            return


def batch_size(evaluations: int) -> int:
    """About a quarter of all evaluations: large enough to be compiled ahead, small enough to learn in between."""
    return min(MOST_BATCH, max(LEAST_BATCH, evaluations // 4))


def has_stalled(times: Sequence[float]) -> bool:
    """Whether the last third of ``times``, in the order measured, brought less than 1 %."""
    if len(times) < _LEAST_BEFORE_STALLING:
        return False
    before = min(times[: len(times) * 2 // 3])
    return math.isfinite(before) and min(times) > before * (1 - _STALLED)


def _seeds(space: Space, size: int) -> list[str]:
    """The best of the portfolio; without one, the untuned candidate, some near to it and some far."""
    from attn_tune.tuner.strategies.features import config_rows
    from attn_tune.tuner.strategies.model import spread_out

    if nearest(space):
        return [d for d in portfolio_order(space) if d not in space.tried][:size]
    order = list(space.by_digest)
    near = list(range(max(1, size // 2)))
    rows = config_rows(list(space.candidates))
    far = spread_out(rows, near, range(len(near), len(order)), size - len(near))
    return [order[i] for i in (*near, *far) if order[i] not in space.tried]


def _promising(
    space: Space, gain: "np.ndarray", times: Mapping[str, float], size: int
) -> list[str]:
    order = list(space.by_digest)
    ranked = sorted(range(len(order)), key=lambda i: (-gain[i], i))
    return [order[i] for i in ranked if order[i] not in times][:size]
