"""The order in which configs are tried, and the choice of an untuned one."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any


def nearest_first[T](start: T, configs: Iterable[T], *, doubling: tuple[str, ...]) -> tuple[T, ...]:
    """``start``, then the others by how far they are from it; all distinct.

    A knob in ``doubling`` counts its doublings; of the others, each that differs counts as one.
    """
    near = _knobs(start)

    def distance(config: T) -> tuple[float, str]:
        far = 0.0
        for name, value in _knobs(config).items():
            if name in doubling:
                far += abs(math.log2(value / near[name]))
            else:
                far += value != near[name]
        return far, repr(config)

    return (start, *sorted(set(configs) - {start}, key=distance))


def nearest_feasible[T](
    start: T,
    configs: Iterable[T],
    reason: Callable[[T], str | None],
    *,
    doubling: tuple[str, ...],
) -> tuple[T, ...]:
    """``nearest_first`` of ``start`` and those configs for which ``reason`` knows none why they cannot run."""
    return nearest_first(start, (c for c in configs if reason(c) is None), doubling=doubling)


def first_feasible[T](configs: Iterable[T], reason: Callable[[T], str | None]) -> T:
    """The first config for which ``reason`` knows none why it cannot run, and the last one where there is no such."""
    *others, last = configs
    return next((config for config in others if reason(config) is None), last)


def _knobs(config: Any) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
