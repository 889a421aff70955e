"""Kernels so far behind another one on a case that the rest of their configs is left out."""

import dataclasses
import math
from collections.abc import Iterable

from attn_tune.schema.trial import WHOLE, Stage, Status
from attn_tune.tuner.plan.plan import CasePlan, KernelPlan

# So many right configs, all so many times slower than another kernel's best one, decide. In sweeps of fourteen kernels
# of nine ops on an H100 the best of a kernel's first four configs was at most 1.4 times as slow as the best of all.
ENOUGH, FACTOR = 4, 4.0


def is_far_behind(times_ns: Iterable[float], rival_ns: float) -> bool:
    """Whether right configs with these times, in nanoseconds, leave no hope of reaching ``rival_ns``."""
    right = [ns for ns in times_ns if math.isfinite(ns)]
    return len(right) >= ENOUGH and min(right) > FACTOR * rival_ns


def fastest_known(plan: KernelPlan) -> float:
    """The time in nanoseconds of the fastest right config of earlier runs; infinite where there is none."""
    return min(_times_ns(plan).values(), default=math.inf)


def without_far_behind(plan: CasePlan) -> CasePlan:
    """``plan`` with nothing more to try of kernels that earlier runs have found to be far behind another one."""
    fastest = {kernel.kernel.id: fastest_known(kernel) for kernel in plan.kernels}
    kernels = []
    for kernel in plan.kernels:
        rival = min((ns for name, ns in fastest.items() if name != kernel.kernel.id), default=math.inf)
        if not kernel.tries_all and is_far_behind(_times_ns(kernel).values(), rival):
            kernel = _left_behind(kernel)
        kernels.append(kernel)
    return dataclasses.replace(plan, kernels=tuple(kernels))


def _left_behind(kernel: KernelPlan) -> KernelPlan:
    """The kernel without configs to try. Finals are owed only where none of it has had one."""
    parts = tuple(dataclasses.replace(part, todo=0 if part.part == WHOLE else part.todo) for part in kernel.parts)
    has_final = any(trial.stage is Stage.FINAL for trial in kernel.known)
    waits = kernel.allow_unproven and any(trial.status is Status.UNPROVEN for trial in kernel.known)
    owed = kernel.finals and (waits or not has_final or any(part.todo for part in parts))
    return dataclasses.replace(kernel, parts=parts, finals=owed, far_behind=True)


def _times_ns(plan: KernelPlan) -> dict[str, float]:
    return {
        trial.config_digest: trial.measurement.median_ns
        for trial in plan.known
        if trial.part == WHOLE and trial.measurement and trial.config_digest not in plan.failed
    }
