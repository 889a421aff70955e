"""Strategies: in which order candidates are tried, and when to stop.

A strategy is a generator function over candidates. It yields the candidate to try next and is sent what was seen,
``inf`` for a config that failed. Strategies know no device, so that a stored sweep can be replayed through them.
"""

import math
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from attn_tune.schema.config import config_digest
from attn_tune.schema.digest import digest_text

type Candidate = Mapping[str, Any]
type Search = Generator[Candidate, float, None]
type Strategy = Callable[[Sequence[Candidate]], Search]


def exhaustive(candidates: Sequence[Candidate]) -> Search:
    """Every candidate, in the order given."""
    for candidate in candidates:  # noqa: UP028 (a list cannot be sent to)
        yield candidate


def random_sample(max_trials: int, seed: str = "") -> Strategy:
    """At most ``max_trials`` candidates: the first one (the heuristic's), then a sample fixed by ``seed``."""

    def strategy(candidates: Sequence[Candidate]) -> Search:
        yield from exhaustive(sample(candidates, max_trials, seed))

    return strategy


def sample(candidates: Sequence[Candidate], count: int, seed: str = "") -> tuple[Candidate, ...]:
    """The first half of ``count`` and a random subset of the rest, in the order given.

    Kernels declare what is nearest to their untuned config first, which is where most winners are. The same candidates
    and seed give the same sample: a resumed sweep meets the configs that it had before.
    """
    if count >= len(candidates):
        return tuple(candidates)
    near = max(1, count // 2)
    rest = list(candidates[near:])
    random.Random(digest_text(seed)).shuffle(rest)
    chosen = {config_digest(c) for c in (*candidates[:near], *rest[: max(0, count - near)])}
    return tuple(c for c in candidates if config_digest(c) in chosen)


def replay(
    strategy: Strategy, candidates: Sequence[Candidate], known: Mapping[str, float]
) -> list[tuple[Candidate, float]]:
    """What ``strategy`` would have seen, given the known times by config digest. Unknown configs count as failed."""
    seen: list[tuple[Candidate, float]] = []
    search = strategy(candidates)
    try:
        candidate = next(search)
        while True:
            seen.append((candidate, known.get(config_digest(candidate), math.inf)))
            candidate = search.send(seen[-1][1])
    except StopIteration:
        return seen
