"""The rest of a case that was begun and lost its device."""

import dataclasses
import math
from collections.abc import Sequence

from attn_tune.schema.config import config_digest
from attn_tune.schema.trial import WHOLE, Trial
from attn_tune.tuner.plan.plan import CasePlan, KernelPlan, PartPlan


def remaining(plan: CasePlan, trials: Sequence[Trial]) -> CasePlan:
    """``plan`` without what the search ``trials`` have already tried: as a new plan made with them would be.

    What was refused before compiling has been reported by then, and is left out.

    Finals that were owed still are, and are measured again: configs are compared with one another on one device only.
    """
    kernels = tuple(_kernel(kernel, [t for t in trials if t.kernel == kernel.kernel.id]) for kernel in plan.kernels)
    return dataclasses.replace(plan, kernels=kernels)


def _kernel(plan: KernelPlan, trials: Sequence[Trial]) -> KernelPlan:
    failed = {t.config_digest for t in trials if t.part == WHOLE and not t.status.is_measured}
    return dataclasses.replace(
        plan,
        parts=tuple(_part(part, [t for t in trials if t.part == part.part]) for part in plan.parts),
        pruned=(),
        known=(*plan.known, *(t for t in trials if t.status.is_measured)),
        failed=plan.failed | failed,
    )


def _part(part: PartPlan, trials: Sequence[Trial]) -> PartPlan:
    space = {config_digest(config) for config in part.space}
    seen = {
        t.config_digest: t.measurement.median_ns if t.measurement else math.inf
        for t in trials
        if t.config_digest in space
    }
    fresh = len(seen.keys() - part.tried.keys())
    return dataclasses.replace(part, tried={**part.tried, **seen}, todo=max(0, part.todo - fresh))
