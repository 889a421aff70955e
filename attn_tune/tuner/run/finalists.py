"""The configs of a kernel that go to the finals, and the whole configs that the winners of its parts make."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from attn_tune.schema.config import config_digest
from attn_tune.tuner.run.search_results import PartResults

# The number of proven configs (right on the case and on feature problems) of a kernel that go to the finals besides the
# heuristic's, and the most that go if more may be as good. Only the finals can distinguish configs that are this close,
# and a config that is not in them cannot be a tie of the winner.
FINALISTS, MOST_FINALISTS = 3, 6
CLOSE = 1.02
# Of each part, this many are put together with those of the others.
_RUNNERS_UP = 3


def places(times: Sequence[float]) -> int:
    """The number of configs that go to the finals, by their ``times``, the fastest first."""
    close = sum(ns <= CLOSE * times[0] for ns in times)
    return min(len(times), MOST_FINALISTS, max(FINALISTS, close))


def compose(parts: Mapping[str, PartResults], heuristic: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The best of each part together, first; then what can be put together from those that may be as good.

    Parts were timed apart, one after the other: only the finals tell configs apart that are this close.
    """
    close = [
        [
            (results.times[config_digest(config)], config)
            for config in results.best(_RUNNERS_UP)
            if results.times[config_digest(config)] <= CLOSE * results.time_of_place(1)
        ]
        for results in parts.values()
    ]
    together = sorted(itertools.product(*close), key=lambda some: sum(ns for ns, _ in some))
    return [{**heuristic, **dict(zip(parts, (c for _, c in some), strict=True))} for some in together[:MOST_FINALISTS]]
