"""Proposed configs before all that a strategy chooses."""

import dataclasses

from attn_tune.tuner.plan.strategies.space import Search, Space, Strategy


def hinted_first(strategy: Strategy) -> Strategy:
    """``strategy``, after the untuned candidate and those of ``Space.hinted``; their times are known to it."""

    def search(space: Space) -> Search:
        wanted = dict.fromkeys([*list(space.by_digest)[:1], *space.hinted]) if space.hinted else ()
        first = [digest for digest in wanted if digest not in space.tried][: space.evaluations]
        if first:
            times = yield space.batch(first)
            limit = None if space.limit is None else space.limit - len(first)
            tried = {**space.tried, **dict(zip(first, times, strict=True))}
            space = dataclasses.replace(space, tried=tried, limit=limit)
        yield from strategy(space)

    return search
