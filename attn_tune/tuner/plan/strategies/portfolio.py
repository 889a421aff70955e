"""Winners of other cases first: a handful of configs serves nearly all shapes, so few evaluations find a good one.

The greedy cover is that of CLBlast's and Kernel Tuning Toolkit's portfolios: the next config is the one that brings
the mean of the best relative times down the most.
"""

import math
from collections.abc import Iterator, Sequence

from attn_tune.tuner.plan.strategies.nearness import nearest, weight
from attn_tune.tuner.plan.strategies.space import PastCase, Search, Space, in_one_batch

# What a config that was not measured somewhere is taken for there, relative to the best.
_UNKNOWN = 4.0
_LEAST_GAIN = 1e-3


def portfolio(space: Space) -> Search:
    """The untuned candidate, the winners of the nearest shapes, the cover of all shapes, then the rest, one batch."""
    return in_one_batch(space, portfolio_order(space))


def portfolio_order(space: Space) -> list[str]:
    """Digests of all candidates, in the order in which they are worth trying.

    After winners and cover comes what was fastest elsewhere on average, near shapes first; without a prior it is the
    kernel's own order.
    """
    past = nearest(space)
    order = dict.fromkeys(list(space.by_digest)[:1])
    order |= dict.fromkeys(_winners(space, past))
    order |= dict.fromkeys(_cover(space, past, list(order)))
    expected = expected_ratios(space)
    place = {digest: i for i, digest in enumerate(space.by_digest)}
    rest = sorted(space.by_digest, key=lambda d: (expected.get(d, math.inf), place[d]))
    return list(order | dict.fromkeys(rest))


def expected_ratios(space: Space) -> dict[str, float]:
    """Time over the best, by config digest: the geometric mean of the prior's cases, near ones counting more.

    A config that failed somewhere counts as slow there.
    """
    total: dict[str, float] = {}
    weights: dict[str, float] = {}
    for far, case in nearest(space):
        share = weight(far)
        for digest, ratio in case.ratios.items():
            if digest in space.by_digest:
                logarithm = math.log(ratio if math.isfinite(ratio) else _UNKNOWN)
                total[digest] = total.get(digest, 0.0) + share * logarithm
                weights[digest] = weights.get(digest, 0.0) + share
    return {digest: math.exp(total[digest] / weights[digest]) for digest in total}


def _winners(space: Space, past: Sequence[tuple[float, PastCase]]) -> Iterator[str]:
    for _, case in past:
        here = {d: r for d, r in case.ratios.items() if d in space.by_digest}
        if here and math.isfinite(min(here.values())):
            yield min(here, key=lambda d: (here[d], d))


def _cover(space: Space, past: Sequence[tuple[float, PastCase]], chosen: Sequence[str]) -> Iterator[str]:
    cases = [(weight(far), case.ratios) for far, case in past]
    best = [min((r.get(d, _UNKNOWN) for d in chosen), default=_UNKNOWN) for _, r in cases]

    def gain(digest: str) -> float:
        return sum(
            share * max(0.0, math.log(now / min(now, ratios.get(digest, now))))
            for (share, ratios), now in zip(cases, best, strict=True)
        )

    left = dict.fromkeys(d for d in space.by_digest if d not in chosen)
    while left:
        digest = max(left, key=gain)
        if gain(digest) <= _LEAST_GAIN * sum(share for share, _ in cases):
            return
        yield digest
        del left[digest]
        best = [min(now, r.get(digest, now)) for (_, r), now in zip(cases, best, strict=True)]
