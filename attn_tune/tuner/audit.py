"""Auditing what was refused before compiling: would the compiler have taken it?

A config that a kernel's ``infeasible`` refuses is never measured, so a constraint that is too strict hides winners and
nobody notices. An audit compiles a sample of them anyway, for the plan's device, which need not be here.
"""

import enum
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attn_tune.schema.digest import digest_text
from attn_tune.schema.trial import WHOLE, Resources, Trial
from attn_tune.tuner.ahead import CompileAhead, usable_cores
from attn_tune.tuner.plan import KernelPlan, Plan
from attn_tune.tuner.protocol import ConfigRef, Lowered, Outcome

# Compiling ahead leaves a core to the worker; here there is none.
_LEAST_CORES = 3


class Verdict(enum.StrEnum):
    """What the compiler says of a config that was refused: ``spills`` fits, but its registers do not."""

    REFUSED = "refused"
    SPILLS = "spills"
    FITS = "fits"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Audited:
    """One refused config. ``trial.reason`` says why; ``said`` is the compiler's word, ``""`` if it took it."""

    trial: Trial
    verdict: Verdict
    said: str = ""
    resources: Resources | None = None


def sample_refused(plan: Plan, count: int, seed: str = "") -> list[tuple[ConfigRef, Trial]]:
    """At most ``count`` of the plan's configs that were refused before compiling and that can be compiled here.

    Chosen by chance that ``seed`` fixes, in the plan's order. Only Triton compiles for a GPU that is not there.
    """
    found = [
        (_ref(kernel, trial), trial)
        for case in plan.cases
        for kernel in case.kernels
        if kernel.runnable and kernel.kernel.backend == "triton"
        for trial in kernel.pruned
    ]
    chosen = set(random.Random(digest_text(seed)).sample(range(len(found)), min(count, len(found))))
    return [pair for i, pair in enumerate(found) if i in chosen]


def audit(
    plan: Plan,
    count: int,
    *,
    seed: str = "",
    interrupt: Callable[[], bool] = lambda: False,
) -> Iterator[Audited]:
    """Compiles a sample of what ``plan`` refuses, in helper processes, and says what the compiler makes of each.

    Raises:
      InterruptedError: ``interrupt()`` turned true.
    """
    sampled = sample_refused(plan, count, seed)
    ahead = CompileAhead(cores=max(_LEAST_CORES, usable_cores() + 1))
    try:
        ahead.expect([ref for ref, _ in sampled], plan.device)
        for ref, trial in sampled:
            yield _judge(trial, ahead.take(ref, interrupt))
    finally:
        ahead.close()


def _ref(kernel: KernelPlan, trial: Trial) -> ConfigRef:
    """A refused config; one launch of several is compiled with the untuned configs of the others."""
    whole = trial.part == WHOLE
    return ConfigRef(
        kernel=kernel.kernel.id,
        signature=trial.signature,
        direction=trial.direction,
        config=trial.config if whole else {**kernel.heuristic, trial.part: trial.config},
        part=trial.part,
    )


def _judge(trial: Trial, answer: Lowered | Outcome | None) -> Audited:
    if answer is None:
        return Audited(trial=trial, verdict=Verdict.UNKNOWN, said="a helper could not compile it")
    if isinstance(answer, Outcome):
        said = answer.reason.splitlines()[0]
        return Audited(trial=trial, verdict=Verdict.REFUSED, said=said)
    spills = (answer.resources.spill_bytes or 0) > 0
    verdict = Verdict.SPILLS if spills else Verdict.FITS
    return Audited(trial=trial, verdict=verdict, resources=answer.resources)
