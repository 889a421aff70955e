"""Audit claims about a target's configs that were not compiled: each is put to the real compiler.

Three claims are checked on samples: that a config fits, because its launches alone do, or others with the same steps;
that one does not (``infeasible`` of its kernel); and that one cannot fit because a smaller one did not (dominance).
"""

import enum
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from attn_tune.schema.digest import digest_text
from attn_tune.schema.trial import Status, Trial
from attn_tune.tuner.offline.compilers.protocol import Compiled
from attn_tune.tuner.offline.oversized import Oversized
from attn_tune.tuner.plan.plan import KernelPlan, PartPlan, Plan
from attn_tune.tuner.protocol import ConfigRef

type Config = Mapping[str, Any]


class Compiler(Protocol):
    """The compiler that claims are put to: a ``CompilePool``, or one wrapped by a ``Journal``."""

    def compile(self, refs: Sequence[ConfigRef], *, whole: bool = False) -> Iterator[tuple[int, Compiled]]:
        """Yield ``(index, result)`` of each, as they end."""
        ...


class Claim(enum.StrEnum):
    """A statement about a config without compiling it.

    Members:
      FEASIBLE: a sweep says that it fits.
      REFUSED: its kernel says that it cannot run.
      DOMINATED: a smaller one did not fit.
    """

    FEASIBLE = "feasible"
    REFUSED = "refused"
    DOMINATED = "dominated"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """A claim and its audit.

    Attributes:
      claim: the kind of claim.
      ref: the config.
      reason: why the claim is made.
      compiled: the compiler's answer for the whole program.
    """

    claim: Claim
    ref: ConfigRef
    reason: str
    compiled: Compiled

    @property
    def spills(self) -> bool:
        """Whether it fits, but the registers of a GPU do not: a refusal that costs nothing."""
        resources = self.compiled.resources
        return resources.registers is not None and bool(resources.spill_bytes)

    @property
    def verdict(self) -> str:
        """``right`` or ``wrong``; ``unknown`` where the compiler came to no end, as XLA takes minutes for some."""
        if self.compiled.status is Status.TIMED_OUT:
            return "unknown"
        fits = self.compiled.status is Status.COMPILED
        if self.claim is Claim.FEASIBLE:
            return "right" if fits else "wrong"
        return "wrong" if fits and not (self.claim is Claim.REFUSED and self.spills) else "right"


@dataclass(frozen=True, kw_only=True)
class _Space:
    """One part of one kernel on one case."""

    plan: KernelPlan
    part: PartPlan
    refused: tuple[Trial, ...]
    oversized: Oversized

    def ref(self, config: Config) -> ConfigRef:
        """The request for a config."""
        return self.plan.ref(self.part.part, config)


def audit_target(
    plan: Plan,
    pool: Compiler,
    count: int,
    *,
    seed: str = "",
    claims: Collection[Claim] = tuple(Claim),
) -> Iterator[Checked]:
    """Compile whole programs: for each of ``claims`` at most ``count`` configs of which it is made.

    A config that runs out of a resource rules others out, so the dominated ones are known last. Samples are random,
    fixed by ``seed``; the feasible and refused configs of a small sample are in a larger one too.

    Raises:
      CompilerError: nothing can be compiled.
    """
    chances = {claim: random.Random(digest_text(f"{seed} {claim}")) for claim in Claim}
    spaces = _spaces(plan)
    feasible = [(i, config, "") for i, space in enumerate(spaces) for config in space.part.space]
    refused = [(i, t.config, t.reason) for i, space in enumerate(spaces) for t in space.refused]
    seen: set[tuple] = set()

    def learn(i: int, ref: ConfigRef, compiled: Compiled) -> None:
        seen.add(ref.key)
        spaces[i].oversized.note(ref.part_config, compiled)

    samples: dict[Claim, list[_Candidate]] = {}
    if Claim.FEASIBLE in claims:
        samples[Claim.FEASIBLE] = _fitting(pool, spaces, feasible, count, chances[Claim.FEASIBLE], learn)
    if Claim.REFUSED in claims:
        samples[Claim.REFUSED] = _sampled(refused, count, chances[Claim.REFUSED])
    for claim, sample in samples.items():
        for i, checked in _check(pool, claim, spaces, sample):
            learn(i, checked.ref, checked.compiled)
            yield checked
    if Claim.DOMINATED not in claims:
        return
    dominated = [
        (i, config, answer.reason)
        for i, space in enumerate(spaces)
        for config in (*space.part.space, *(t.config for t in space.refused))
        if space.ref(config).key not in seen and (answer := space.oversized.answer(config))
    ]
    sample = _sampled(dominated, count, chances[Claim.DOMINATED])
    for _, checked in _check(pool, Claim.DOMINATED, spaces, sample):
        yield checked


def _spaces(plan: Plan) -> list[_Space]:
    return [
        _Space(
            plan=kernel,
            part=part,
            refused=tuple(t for t in kernel.pruned if t.part == part.part),
            oversized=Oversized(kernel.kernel.searches[kernel.case.direction].grows),
        )
        for planned in plan.cases
        for kernel in planned.kernels
        if kernel.runnable
        for part in kernel.parts
    ]


# The place of its space, the config, and why the claim is made.
type _Candidate = tuple[int, Config, str]


def _sampled(found: Sequence[_Candidate], count: int, chance: random.Random) -> list[_Candidate]:
    return chance.sample(found, len(found))[:count]


def _fitting(
    pool: Compiler,
    spaces: Sequence[_Space],
    found: Sequence[_Candidate],
    count: int,
    chance: random.Random,
    learn: Callable[[int, ConfigRef, Compiled], None],
) -> list[_Candidate]:
    """Compile candidates as a sweep does until ``count`` fit; ``learn`` is called for each that does not."""
    left, fitting = _sampled(found, len(found), chance), []
    while left and len(fitting) < count:
        lacking = count - len(fitting)
        some, left = left[:lacking], left[lacking:]
        refs = [spaces[i].ref(config) for i, config, _ in some]
        for index, compiled in pool.compile(refs):
            if compiled.status is Status.COMPILED:
                fitting.append(some[index])
            else:
                learn(some[index][0], refs[index], compiled)
    return fitting


def _check(
    pool: Compiler, claim: Claim, spaces: Sequence[_Space], sample: Sequence[_Candidate]
) -> Iterator[tuple[int, Checked]]:
    refs = [spaces[i].ref(config) for i, config, _ in sample]
    for index, compiled in pool.compile(refs, whole=True):
        i, _, reason = sample[index]
        yield i, Checked(claim=claim, ref=refs[index], reason=reason, compiled=compiled)
