"""The small problems on which a kernel is proven: its op's, made coarser where it cannot take them as they are."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from attn_tune.kernels.spec import KernelSpec, Op, Problem, load
from attn_tune.schema.config import config_from_dict
from attn_tune.schema.device import Device
from attn_tune.schema.trial import Status, Trial
from attn_tune.tuner.protocol import Outcome

type Refusal = Callable[[Problem], str | None]


def refusal(
    spec: KernelSpec, direction: str, device: Device, config: Mapping[str, Any] | None = None
) -> Refusal:
    """The function that says why a kernel, or one config of it, cannot take a problem; it returns None if it can."""
    search = spec.searches[direction]
    typed = None if config is None else config_from_dict(search.config, config)

    def reason(problem: Problem) -> str | None:
        refused = spec.unsupported(problem, direction, device)
        if refused or typed is None:
            return refused
        return search.infeasible(problem, device, typed)

    return reason


def takeable(op: Op, problem: Problem, refused: Refusal) -> Problem | None:
    """``problem``, or the first of its coarser variants that is not refused; None if all are."""
    if refused(problem) is None:
        return problem
    variants = load(op.coarser)(problem) if op.coarser else ()
    return next((variant for variant in variants if refused(variant) is None), None)


def battery_for(op: Op, problem: Problem, refused: Refusal) -> tuple[Problem, ...]:
    """The distinct problems of the op's battery for ``problem``, each as it is taken, without those that never are."""
    hard = load(op.battery)(problem) if op.battery else ()
    found = (takeable(op, one, refused) for one in hard)
    return tuple(dict.fromkeys(one for one in found if one is not None))


def unproven(trial: Trial) -> Outcome:
    """The outcome of a config that is right on its case, of which nothing else is known."""
    assert trial.measurement is not None
    return Outcome(
        status=Status.UNPROVEN,
        reason="no problem of the op's battery is one that it takes, not even a coarser one",
        errors=trial.errors,
        # Timed by the search alone, whatever else the trial was of.
        measurement=replace(trial.measurement, round_id=""),
        resources=trial.resources,
        repeatable=trial.repeatable,
        features=0,
    )
