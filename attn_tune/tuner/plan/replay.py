"""Strategies against recorded trials, without a device: what each would have found, and how soon."""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attn_tune.schema.config import config_digest
from attn_tune.schema.signature import Field, Signature
from attn_tune.tuner.plan.strategies.space import Candidate, PastCase, Prior, Space, Strategy, send


class Hints(enum.StrEnum):
    """The knowledge of other cases that a replayed case is given."""

    TIMES = "times"
    """The times of all configs of the other cases, as a lab database has them."""
    WINNERS = "winners"
    """The winners of the other cases alone, as a pack has them."""
    NONE = "none"
    """Nothing of the other cases."""


@dataclass(frozen=True, kw_only=True)
class RecordedCase:
    """One part of one kernel on one case, all of it tried before.

    ``candidates`` are in the kernel's order, the untuned one first; ``times`` are nanoseconds by config digest, and a
    candidate without one failed.

    Attributes:
      kernel, direction, part, signature: the case.
      fields: the fields of the op's signature.
    """

    kernel: str
    direction: str
    part: str
    signature: Signature
    candidates: tuple[Candidate, ...]
    times: Mapping[str, float]
    fields: tuple[Field, ...] = ()

    @property
    def best_ns(self) -> float:
        """The fastest time, ``inf`` when all failed."""
        return min(self.times.values(), default=math.inf)

    def past(self, hints: Hints = Hints.TIMES) -> PastCase:
        """The knowledge of this case that another one is given."""
        if hints is Hints.TIMES:
            failed = {config_digest(c): math.inf for c in self.candidates}
            return PastCase(signature=self.signature, times=failed | dict(self.times))
        best = min(self.times, key=lambda digest: (self.times[digest], digest), default=None)
        winner = {} if best is None or hints is Hints.NONE else {best: self.times[best]}
        return PastCase(signature=self.signature, times=winner)

    def space(
        self,
        others: Sequence["RecordedCase"],
        *,
        limit: int,
        seed: str = "",
        hints: Hints = Hints.TIMES,
    ) -> Space:
        """The case as if nothing of it were known yet. Only ``others`` of its kernel, direction and part are known."""
        known = [o for o in others if o.series == self.series and o.signature != self.signature]
        return Space(
            candidates=self.candidates,
            limit=limit,
            signature=self.signature,
            fields=self.fields,
            prior=Prior(cases=tuple(other.past(hints) for other in known)),
            seed=f"{self.signature.text} {self.part} {seed}",
        )

    @property
    def series(self) -> tuple[str, str, str]:
        """Kernel, direction and part: what cases must share to tell something of one another."""
        return self.kernel, self.direction, self.part


@dataclass(frozen=True, kw_only=True)
class RegretCurve:
    """``regrets[i]`` is the best time after ``i + 1`` evaluations over the best of all, minus 1; ``inf`` before any.

    Attributes:
      case: the case.
    """

    case: RecordedCase
    regrets: tuple[float, ...]

    def at(self, share: float) -> float:
        """The regret after ``share`` of the space was evaluated, at least one; that of the end when that was sooner."""
        return self.after(max(1, math.ceil(share * len(self.case.candidates))))

    def after(self, evaluations: int) -> float:
        """The regret after so many evaluations."""
        reached = self.regrets[:evaluations]
        return reached[-1] if reached else math.inf


def replay(strategy: Strategy, space: Space, times: Mapping[str, float]) -> list[tuple[Candidate, float]]:
    """Configs that ``strategy`` would try, with times, given the known times by config digest. Unknown ones failed."""
    seen: list[tuple[Candidate, float]] = []
    search = strategy(space)
    batch = next(search, None)
    while batch is not None:
        answers = tuple(times.get(config_digest(candidate), math.inf) for candidate in batch)
        seen += zip(batch, answers, strict=True)
        batch = send(search, answers)
    return seen


def regret_curve(strategy: Strategy, case: RecordedCase, space: Space) -> RegretCurve:
    """The distance of ``strategy`` from the best of ``case``, evaluation by evaluation."""
    best, regrets = math.inf, []
    for _, ns in replay(strategy, space, case.times):
        best = min(best, ns)
        regrets.append(best / case.best_ns - 1)
    return RegretCurve(case=case, regrets=tuple(regrets))


def leave_one_shape_out(
    strategy: Strategy,
    cases: Sequence[RecordedCase],
    *,
    share: float = 1.0,
    seed: str = "",
    hints: Hints = Hints.TIMES,
) -> list[RegretCurve]:
    """One curve a case that has a right config; its prior is every other shape. ``share`` of a space is evaluated."""
    curves = []
    for case in cases:
        if math.isfinite(case.best_ns):
            limit = max(1, math.ceil(share * len(case.candidates)))
            space = case.space(cases, limit=limit, seed=seed, hints=hints)
            curves.append(regret_curve(strategy, case, space))
    return curves


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of ``values`` lie: the nearest rank, so always one of them."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
