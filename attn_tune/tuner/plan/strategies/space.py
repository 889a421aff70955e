"""The input of a search strategy, and the one form that all strategies have."""

import functools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attn_tune.schema.config import config_digest
from attn_tune.schema.signature import Field, Signature

type Candidate = Mapping[str, Any]
type Batch = tuple[Candidate, ...]
type Times = tuple[float, ...]
type Search = Generator[Batch, Times, None]
type Strategy = Callable[["Space"], Search]


@dataclass(frozen=True, kw_only=True)
class PastCase:
    """Times measured before on another case of the same kernel, direction and part.

    ``times`` are nanoseconds by config digest, ``inf`` for a config that failed. ``same_device`` is false for another
    device of the same family.

    Attributes:
      signature: the problem of that case.
    """

    signature: Signature
    times: Mapping[str, float]
    same_device: bool = True

    @functools.cached_property
    def best_ns(self) -> float:
        """The fastest time, ``inf`` without any."""
        return min(self.times.values(), default=math.inf)

    @functools.cached_property
    def ratios(self) -> dict[str, float]:
        """Times over the fastest one, by config digest; empty when nothing was right."""
        if math.isinf(self.best_ns):
            return {}
        return {digest: ns / self.best_ns for digest, ns in self.times.items()}


@dataclass(frozen=True, kw_only=True)
class Prior:
    """Hints from what was measured before. They decide what is tried first, never what is chosen.

    Attributes:
      cases: other cases, with their times.
    """

    cases: tuple[PastCase, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Space:
    """The configs of one part of one kernel on one case, and what is known of them.

    Attributes:
      prior: what was measured on other cases.
      candidates: all of them, distinct, in the kernel's order: the untuned one first, then what is near to it.
      tried: nanoseconds by config digest (``inf``: failed) of candidates tried in an earlier run, oldest first.
      limit: how many more may be evaluated; None is no limit.
      signature, fields: of the case, and what its fields mean; None and empty where there is no case.
      seed: decides everything that is random. Equal spaces are searched equally.
      hinted: config digests of candidates that were proposed, the most promising first; they are evaluated first.
      hint: receives what may be asked for after the next batch, so that it can be prepared.
    """

    candidates: Sequence[Candidate]
    tried: Mapping[str, float] = field(default_factory=dict)
    limit: int | None = None
    signature: Signature | None = None
    fields: tuple[Field, ...] = ()
    prior: Prior = Prior()
    seed: str = ""
    hinted: tuple[str, ...] = ()
    hint: Callable[[Batch], object] = field(default=lambda candidates: None, compare=False)

    @functools.cached_property
    def by_digest(self) -> dict[str, Candidate]:
        """The candidates by config digest, in order."""
        return {config_digest(candidate): candidate for candidate in self.candidates}

    @functools.cached_property
    def open(self) -> tuple[str, ...]:
        """Digests of the candidates that were not tried, in order."""
        return tuple(digest for digest in self.by_digest if digest not in self.tried)

    @property
    def evaluations(self) -> int:
        """The number of candidates that a search of this space may evaluate."""
        return len(self.open) if self.limit is None else max(0, min(self.limit, len(self.open)))

    def batch(self, digests: Sequence[str]) -> Batch:
        """The candidates with these digests."""
        return tuple(self.by_digest[digest] for digest in digests)


def send(search: Search, seen: Times) -> Batch | None:
    """Tell a search the times of its last batch; its next one, None at the end."""
    try:
        return search.send(seen)
    except StopIteration:
        return None


def in_one_batch(space: Space, order: Sequence[str]) -> Search:
    """The untried candidates in ``order``, up to the limit, in spite of their times."""
    wanted = [digest for digest in order if digest not in space.tried][: space.evaluations]
    if wanted:
        yield space.batch(wanted)
