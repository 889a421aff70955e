"""The feature problems on which a kernel is proven, made coarser where it cannot take them as they are."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from attn_tune.kernels.spec import KernelSpec, Problem
from attn_tune.ops.contract import Op, load
from attn_tune.schema.config import config_from_dict, config_to_dict
from attn_tune.schema.device import Device
from attn_tune.schema.errors import UnsupportedError
from attn_tune.schema.trial import Status, Trial
from attn_tune.tuner.protocol import Outcome

type Config = Mapping[str, Any]
type Refusal = Callable[[Problem], str | None]


def refusal(spec: KernelSpec, direction: str, device: Device, config: Mapping[str, Any] | None = None) -> Refusal:
    """The function that says why a kernel, or one config of it, cannot take a problem; it returns None if it can."""
    if config is None:
        return lambda problem: spec.unsupported(problem, direction, device)
    typed = config_from_dict(spec.searches[direction].config, config)
    return functools.partial(_refused, spec, direction, device, lambda problem: typed)


def takeable(op: Op, problem: Problem, refused: Refusal) -> Problem | None:
    """``problem``, or the first of its coarser variants that is not refused; None if all are."""
    if refused(problem) is None:
        return problem
    variants = load(op.coarser)(problem) if op.coarser else ()
    return next((variant for variant in variants if refused(variant) is None), None)


def unsaid(op: Op, problem: Problem) -> dict[str, Any]:
    """The values of fields of ``problem`` that its signature does not say, where they are not as usual."""
    usual = op.from_signature(op.to_signature(problem))
    values = {field.name: getattr(problem, field.name) for field in (fields(problem) if is_dataclass(problem) else ())}
    return {name: value for name, value in values.items() if value != getattr(usual, name)}


def described(op: Op, problem: Problem) -> str:
    """The signature of ``problem``, and what it does not say."""
    own = unsaid(op, problem).items()
    words = (f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in own)
    return f"{op.to_signature(problem)}{' with ' if own else ''}{', '.join(words)}"


def features_for(
    op: Op, spec: KernelSpec, direction: str, device: Device, problem: Problem, config: Config
) -> tuple[tuple[Problem, Config], ...]:
    """The distinct feature problems of the op for ``problem``, each as it is taken, and the config that runs on it.

    That is ``config``, or where no variant takes it (knobs may depend on the shape: a section of heads divides their
    number) what the kernel makes of it, as a lookup would. Problems that are never taken are left out.
    """
    search = spec.searches[direction]
    typed = config_from_dict(search.config, config)
    fits: tuple[Callable[[Problem], Any], ...] = (
        lambda small: typed,
        lambda small: search.adapt(problem, small, device, typed),
    )
    found: dict[Problem, Config] = {}
    for hard in load(op.features)(problem) if op.features else ():
        for fit in fits:
            refused = functools.partial(_refused, spec, direction, device, fit)
            if (taken := takeable(op, hard, refused)) is not None:
                found.setdefault(taken, config_to_dict(fit(taken)))
                break
    return tuple(found.items())


def _refused(
    spec: KernelSpec,
    direction: str,
    device: Device,
    fit: Callable[[Problem], Any],
    problem: Problem,
) -> str | None:
    if reason := spec.unsupported(problem, direction, device):
        return reason
    try:
        config = fit(problem)
    except UnsupportedError as error:  # an installed kernel's own mistake
        return str(error)
    if config is None:
        return f"{spec.id} has no such config for this problem"
    return spec.searches[direction].infeasible(problem, device, config)


def unproven(trial: Trial) -> Outcome:
    """The outcome of a config that is right on its case, of which nothing else is known."""
    assert trial.measurement is not None
    return Outcome(
        status=Status.UNPROVEN,
        reason="it takes no feature problem of the op, not even a coarser one",
        errors=trial.errors,
        # Timed by the search alone, even in a trial of the finals.
        measurement=replace(trial.measurement, round_id=""),
        resources=trial.resources,
        repeatable=trial.repeatable,
        features=0,
    )
