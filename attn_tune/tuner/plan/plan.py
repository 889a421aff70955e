"""`Plan` of a sweep: the configs to try, those tried before, and those refused, each with its reason."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from attn_tune.kernels.spec import KernelSpec
from attn_tune.schema.config import config_digest
from attn_tune.schema.device import Device
from attn_tune.schema.environment import Environment
from attn_tune.schema.trial import WHOLE, Status, Trial
from attn_tune.tuner.plan.case import Case
from attn_tune.tuner.plan.strategies.space import Prior, Space
from attn_tune.tuner.protocol import ConfigRef, Outcome

type ConfigDict = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PartPlan:
    """The configs of one part, the heuristic's first.

    ``tried`` are the nanoseconds, ``inf`` for a failure, of those tried before, oldest first. The strategy may evaluate
    ``todo`` of the others.

    Attributes:
      space: the configs.
      hinted: digests of those of them that were proposed and come first.
    """

    part: str
    space: tuple[ConfigDict, ...]
    todo: int
    tried: Mapping[str, float] = field(default_factory=dict)
    hinted: tuple[str, ...] = ()

    @property
    def candidates(self) -> tuple[ConfigDict, ...]:
        """The configs that were not tried, in order."""
        return tuple(c for c in self.space if config_digest(c) not in self.tried)

    @property
    def done(self) -> int:
        """The number of configs that were tried before."""
        return len(self.tried)


@dataclass(frozen=True, kw_only=True)
class KernelPlan:
    """One kernel on one case.

    ``pruned`` are trials that need no device: refused before compiling, with the reason. ``refusal`` is the status of a
    kernel that cannot run the case at all. ``known`` are the ok trials of an earlier run in an equal environment,
    ``failed`` the digests of whole configs that were found not to be right. ``finals`` says whether the last round is
    still owed. ``prior`` tells, by part, what was measured on other cases; it is asked when the search of a part
    begins, so it knows those before. ``allow_nondeterministic`` says whether a config whose bits differ from run to run
    may be chosen, ``allow_unproven`` whether one may that ran no feature problem.

    Attributes:
      heuristic: the untuned config.
      parts: the plans of the parts; none for a kernel that cannot run the case.
      tries_all: its configs are tried however far behind another kernel it is.
      far_behind: the rest of its configs is left out for that reason.
    """

    case: Case
    kernel: KernelSpec
    environment: Environment
    heuristic: ConfigDict = field(default_factory=dict)
    parts: tuple[PartPlan, ...] = ()
    pruned: tuple[Trial, ...] = ()
    refusal: Status | None = None
    known: tuple[Trial, ...] = ()
    failed: frozenset[str] = frozenset()
    finals: bool = True
    allow_nondeterministic: bool = True
    allow_unproven: bool = False
    tries_all: bool = True
    far_behind: bool = False
    prior: Callable[[str], Prior] = field(default=lambda part: Prior(), compare=False)

    @property
    def runnable(self) -> bool:
        """Whether the kernel can run the case at all."""
        return bool(self.parts)

    @property
    def todo(self) -> int:
        """Configs to try, at most. Besides the parts': a direction of several launches also runs whole twice."""
        wholes = 2 if self.finals and WHOLE not in {part.part for part in self.parts} else 0
        return sum(part.todo for part in self.parts) + (wholes if self.parts else 0)

    def permitted(self, outcome: Outcome) -> Outcome:
        """``outcome``, refused where its bits differ from run to run and the sweep did not ask for such."""
        allowed = self.allow_nondeterministic or outcome.repeatable is not False
        if allowed or not outcome.status.is_measured:
            return outcome
        found = outcome.reason or "two runs on the same inputs gave different bits"
        reason = f"{found}; --allow-nondeterministic takes such configs"
        return replace(outcome, status=Status.UNSUPPORTED, reason=reason, measurement=None)

    def ref(self, part: str, config: ConfigDict) -> ConfigRef:
        """The request for a whole config, or for one of a part with the heuristic's for the others."""
        return ConfigRef(
            kernel=self.kernel.id,
            signature=self.case.signature,
            direction=self.case.direction,
            config=config if part == WHOLE else {**self.heuristic, part: config},
            part=part,
        )

    def is_heuristic(self, part: str, config: ConfigDict) -> bool:
        """Whether ``config`` of ``part`` is the heuristic's."""
        base = self.heuristic if part == WHOLE else self.heuristic[part]
        return config_digest(config) == config_digest(base)

    def space(self, part: PartPlan, **known: Any) -> Space:
        """The space of ``part`` for a strategy; ``known`` are the other fields of ``Space``."""
        case = self.case
        return Space(
            candidates=part.space,
            signature=case.signature,
            fields=case.op.fields,
            seed=f"{self.kernel.id} {case.direction} {case.signature.text} {part.part}",
            hinted=part.hinted,
            **known,
        )

    def trial(
        self,
        part: str,
        config: ConfigDict,
        *,
        device: Device,
        started_us: int | None = None,
        **facts: Any,
    ) -> Trial:
        """The trial of a config that ends now. ``facts`` are the other fields of ``Trial``.

        Without ``started_us``, in microseconds since 1970, it took no time.
        """
        now_us = time.time_ns() // 1000
        return Trial(
            kernel=self.kernel.id,
            direction=self.case.direction,
            signature=self.case.signature,
            device=device,
            environment=self.environment,
            config=config,
            part=part,
            started_us=now_us if started_us is None else started_us,
            ended_us=now_us,
            point="+".join(self.case.names),
            **facts,
        )


@dataclass(frozen=True, kw_only=True)
class CasePlan:
    """One case and the kernels that it is tried on."""

    case: Case
    kernels: tuple[KernelPlan, ...]

    @property
    def todo(self) -> int:
        """Configs to try."""
        return sum(kernel.todo for kernel in self.kernels)

    @property
    def finished(self) -> bool:
        """Nothing is left to do, not even the finals."""
        return self.todo == 0 and not any(k.finals for k in self.kernels if k.runnable)

    @property
    def is_idle(self) -> bool:
        """Nothing is left to do, or nothing can run: a sweep does not begin the case."""
        return self.finished or not any(kernel.runnable for kernel in self.kernels)


@dataclass(frozen=True, kw_only=True)
class PlanCounts:
    """Counts of a plan over its cases: configs to try, tried before, and refused before compiling.

    Attributes:
      cases: the cases.
      todo, done, pruned: the configs to try, tried before, and refused before compiling.
      unsupported_kernels: the kernels that cannot run a case, counted once a case.
    """

    cases: int
    todo: int
    done: int
    pruned: int
    unsupported_kernels: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything a sweep will do, in order.

    Attributes:
      device: the device.
      cases: the plans of the cases.
    """

    device: Device
    cases: tuple[CasePlan, ...]

    @property
    def counts(self) -> PlanCounts:
        """The totals."""
        kernels = [kernel for case in self.cases for kernel in case.kernels]
        return PlanCounts(
            cases=len(self.cases),
            todo=sum(kernel.todo for kernel in kernels),
            done=sum(part.done for kernel in kernels for part in kernel.parts),
            pruned=sum(len(kernel.pruned) for kernel in kernels if kernel.runnable),
            unsupported_kernels=sum(not kernel.runnable for kernel in kernels),
        )
