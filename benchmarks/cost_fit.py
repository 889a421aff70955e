"""The model of ``attn_tune/kernels/flash_attention/costs.py`` as a function of its figures, and its fit to times.

All kernels of a direction are fitted at once: damped least squares of the logarithms, where what is near the fastest of
a race counts most, and what all configs of a race are off by counts little. Each figure is drawn to a start: those of
one config to those of its launch, and what a fact changes for one config to what it changes for all.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from cost_menu import MENU, WIDTHS, width_of
from raced_work import raced_work

from attn_tune.kernels.flash_attention import costs
from attn_tune.kernels.flash_attention.costs import FACTS, Launch
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

LAUNCHES = {
    "fwd": {
        "triton": ("fwd",),
        "triton_hopper": ("fwd",),
        "triton_split": ("fwd",),
        "cudnn": ("fwd",),
    },
    "bwd": {"triton": ("dq", "dkv"), "cudnn": ("bwd",)},
}
# Multiprocessors of the devices that raced.
UNITS = 132
# A start for each figure, and by what factor (of e) a fit may go from it without a reason.
STARTS = {"tile": (0.5 / 4096, 2.0), "lone": (0.1, 2.0), "start": (0.5, 1.5), "first": (1.5, 1.5)}
CALLS = {"launch": (4.0, 1.0), "ranges": (4.0, 0.7), "sinks": (0.3, 1.0), "lengths": (0.3, 1.0),
         "prepare": (1.0, 0.5), "combine": (1.0, 0.7), "split": (0.05, 0.7)}  # fmt: skip
SPREAD, FACT, TAIL, BUSIEST, MEMORY = 0.25, 0.3, (0.5, 0.3), (0.3, 0.3), 0.1
# Facts that change the program that Triton compiles, so that each config has a factor of its own beside its launch's.
# The tanh of a soft cap needs registers, of which some configs have none left.
OWN = {"cap": 0.15, "cut": 0.05, "causal": 0.05, "narrow": 0.05, "sinks": 0.05, "lengths": 0.05, "documents": 0.05}
# A usual error, by which a race may be off as a whole, and how few searches of large problems stand beside many races.
ERROR, SHARED, LONE_WEIGHT = 0.05, 0.85, 2.0
# Steps of a search, and the relative gain that ends it.
STEPS, LEAST_GAIN = 40, 2e-4


class Time(NamedTuple):
    """One config of a race: its launches, its time and that of the fastest, in microseconds.

    Without ``is_call`` the time is that of one launch, not of the call it is part of.
    """

    race: int
    device: Device
    problem: Problem
    launches: tuple[Launch, ...]
    us: float
    best: float
    is_call: bool = True


class Fit:
    """The figures of all kernels of a direction, as a vector of logarithms, and the times they are fitted to."""

    def __init__(self, direction: str, times: Mapping[str, Sequence[Time]], resident: Mapping[Any, int]):
        self.direction, self.kernels, self.resident = direction, tuple(times), resident
        self.times = [time for of_kernel in times.values() for time in of_kernel]
        self.names = tuple(f"{kernel}/{part}" for kernel in times for part in LAUNCHES[direction][kernel])
        self.configs = [(name, w, knobs) for name in self.names for w in WIDTHS for knobs in MENU[name][w]]
        self.us = np.array([t.us for t in self.times])
        self.race = np.array([t.race for t in self.times])
        self.kernel = np.repeat(np.arange(len(times)), [len(of_kernel) for of_kernel in times.values()])
        calls = np.array([float(t.is_call) for t in self.times])
        self.weight = np.clip(1.5 * np.array([t.best for t in self.times]) / self.us, 0.15, 1.0)
        self.weight *= np.where(calls > 0, 1.0, LONE_WEIGHT)
        # The logarithm of rows times keys of each config's tile, and of the head dim.
        tiles = [costs.tile_of(Launch(name, knobs)) for name, _, knobs in self.configs]
        self.area = np.array([math.log(q * k * c[1] / 64) for (q, k), c in zip(tiles, self.configs, strict=True)])
        self._add_figures()
        problems = [t.problem for t in self.times]
        prepared = [costs.prepared_us(t.problem, t.device) if direction == "bwd" else 0.0 for t in self.times]
        self.of_call = {
            "launch": calls,
            "prepare": calls * prepared,
            "sinks": calls * [p.has_sinks for p in problems],
            "lengths": calls * [p.has_lengths for p in problems],
        }
        self.splits = np.array([t.launches[0].splits for t in self.times], float)
        self.parts = np.array([costs.parts_us(t.problem, t.launches[0].splits, t.device) for t in self.times])
        self._add_launches()

    def _add_figures(self) -> None:
        self.shapes: dict[str, tuple[slice, tuple[int, ...]]] = {}
        start: list[float] = []
        give: list[float] = []

        def add(figure: str, value: float, spread: float, *shape: int) -> None:
            self.shapes[figure] = (slice(len(start), len(start) + math.prod(shape)), shape)
            start.extend([value] * math.prod(shape))
            give.extend([spread] * math.prod(shape))

        names, configs = len(self.names), len(self.configs)
        for figure, (value, spread) in STARTS.items():
            add(figure, math.log(value), spread, names, len(WIDTHS))
            add(f"{figure} of", 0.0, SPREAD, configs)
        add("factors", 0.0, FACT, names, len(FACTS))
        for fact, spread in OWN.items():
            add(f"{fact} of", 0.0, spread, configs)
        add("tail", *TAIL, names, 2)
        add("busiest", *BUSIEST, names, 2)
        add("memory", 0.0, MEMORY, names)
        for figure, (value, spread) in CALLS.items():
            add(f"call {figure}", math.log(value), spread, len(self.kernels))
        self.start, self.give = np.array(start), np.array(give)

    def _add_launches(self) -> None:
        """Columns with one row for each launch of each time."""
        index = {config: i for i, config in enumerate(self.configs)}
        every = [(row, launch) for row, time in enumerate(self.times) for launch in time.launches]
        problems = [self.times[row].problem for row, _ in every]
        widths = [width_of(p) for p in problems]
        keys = [(launch.name, w, launch.knobs) for (_, launch), w in zip(every, widths, strict=True)]
        self.row = np.array([row for row, _ in every])
        self.config = np.array([index[key] for key in keys])
        self.name = np.array([self.names.index(launch.name) for _, launch in every])
        self.width = np.array([WIDTHS.index(w) for w in widths])
        self.blocks = np.array([self.resident[key] for key in keys])
        self.causal = np.array([p.causal for p in problems])
        reading = [costs.memory_us(self.times[row].problem, self.times[row].device) for row, _ in every]
        self.memory = np.array(reading) * (self.direction == "fwd")
        pairs = [(launch, p) for (_, launch), p in zip(every, problems, strict=True)]
        self.raced, self.expected = (self._work(of, pairs) for of in (raced_work, costs.work_of))
        self.facts = np.array([costs.work_of(*pair).facts for pair in pairs], float)

    def _work(self, of: Callable[..., costs.Work], pairs: Sequence[tuple[Launch, Problem]]) -> dict[str, np.ndarray]:
        found = [of(*pair) for pair in pairs]
        names = ("programs", "tiles", "longest", "ranges")
        return {name: np.array([float(getattr(work, name)) for work in found]) for name in names}

    def value(self, x: Any, figure: str) -> Any:
        """The logarithms of one kind of figure."""
        where, shape = self.shapes[figure]
        return x[where].reshape(shape)

    def predict(self, x: np.ndarray, *, raced: bool = False) -> np.ndarray:
        """Microseconds of each time, as a call expects it or of the inputs that were raced."""
        with jax.enable_x64(True):
            return np.asarray(self._microseconds(jnp.asarray(x), self.raced if raced else self.expected))

    def _microseconds(self, x: Any, work: Mapping[str, np.ndarray]) -> Any:
        value = functools.partial(self.value, x)
        config, name, width, facts = self.config, self.name, self.width, jnp.asarray(self.facts)
        tile, start, lone, first = (
            jnp.exp(value(f)[name, width] + value(f"{f} of")[config] + power * self.area[config])
            for f, power in (("tile", 1.0), ("start", 0.0), ("lone", 0.5), ("first", 0.0))
        )
        factor = (facts * value("factors")[name]).sum(1)
        for fact in OWN:
            factor += facts[:, FACTS.index(fact)] * value(f"{fact} of")[config]
        factor = jnp.exp(factor)
        each, emptiness = work["programs"] / UNITS, 1.0
        for rounds, power in ((each / self.blocks, "tail"), (each, "busiest")):
            idle = np.where(rounds > 1, np.ceil(rounds) / np.maximum(rounds, 1e-9), 1.0)
            emptiness *= jnp.exp(np.log(idle) * value(power)[name, np.where(self.causal, 0, 1)])
        busy = (work["programs"] * start + work["tiles"] * tile) / UNITS * emptiness * factor
        longest = (first + work["longest"] * lone) * factor
        memory = jnp.exp(value("memory"))[name] * self.memory
        ranges = jnp.exp(value("call ranges"))[self.kernel[self.row]] * work["ranges"]
        us = (busy**4 + longest**4 + memory**4) ** 0.25 + ranges
        us = jax.ops.segment_sum(us, self.row, len(self.times))
        call = {figure: jnp.exp(value(f"call {figure}"))[self.kernel] for figure in CALLS}
        us += sum(call[figure] * counts for figure, counts in self.of_call.items())
        return us + jnp.where(self.splits > 1, call["combine"] + self.splits * call["split"] + self.parts, 0.0)

    @functools.cached_property
    def _errors(self) -> tuple[Any, Any]:
        """The weighed errors of all times and their derivatives, as functions of figures and of the times kept.

        Chance decides how long documents are, and more: what all configs of a race are off by is mostly left out.
        """
        numbers, race = np.unique(self.race, return_inverse=True)

        def errors(x: Any, kept: Any) -> Any:
            weight = self.weight * kept
            error = jnp.log(self._microseconds(x, self.raced) / self.us)
            total, count = (jax.ops.segment_sum(v, race, len(numbers)) for v in (weight**2 * error, weight**2))
            error -= SHARED * (total / (count + 1e-9))[race]
            # Beyond what a logarithm may be a step of the search tells nothing.
            return jnp.nan_to_num(error * weight / ERROR, posinf=1e3)

        return jax.jit(errors), jax.jit(jax.jacfwd(errors))

    def fit(self, kept: np.ndarray) -> np.ndarray:
        """The figures that fit the ``kept`` times."""
        with jax.enable_x64(True):
            return self._searched(kept.astype(float))

    def _searched(self, kept: np.ndarray) -> np.ndarray:
        of, derivatives = self._errors
        x, damping, pull = self.start.copy(), 1e-2, self.give**-2.0

        def loss(x: np.ndarray, errors: np.ndarray) -> float:
            # Large errors count linearly.
            return float((2 * np.sqrt(1 + errors**2) - 2).sum() + ((x - self.start) ** 2 * pull).sum()) / 2

        errors = np.asarray(of(x, kept))
        least = loss(x, errors)
        for _ in range(STEPS):
            slope = np.asarray(derivatives(x, kept))
            weighed = slope / np.sqrt(1 + errors**2)[:, None]
            curvature = slope.T @ weighed + np.diag(pull)
            gradient = weighed.T @ errors + (x - self.start) * pull
            before = least
            while least == before and damping < 1e6:
                step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), -gradient)
                tried = x + np.clip(step, -1, 1)
                found = np.asarray(of(tried, kept))
                if loss(tried, found) < least:
                    x, errors, least = tried, found, loss(tried, found)
                else:
                    damping *= 4
            damping = max(damping / 5, 1e-6)
            if before - least < LEAST_GAIN * before:
                break
        return x

    def figures(self, x: np.ndarray) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
        """The figures that ``costs.py`` reads: of the launches, and of the calls of each kernel."""
        launches = {name: self._launch(x, i) for i, name in enumerate(self.names)}
        calls = {}
        for i, kernel in enumerate(self.kernels):
            call = {figure: _short(math.exp(self.value(x, f"call {figure}")[i])) for figure in CALLS}
            calls[f"{kernel} {self.direction}"] = call | ({"prepare": 0.0} if self.direction == "fwd" else {})
        return launches, calls

    def _launch(self, x: np.ndarray, i: int) -> dict[str, Any]:
        value = functools.partial(self.value, x)
        by_width: dict[str, list[dict[str, Any]]] = {str(width): [] for width in WIDTHS}
        for j, (name, width, knobs) in enumerate(self.configs):
            if name != self.names[i]:
                continue
            figures: dict[str, Any] = {"knobs": list(knobs), "resident": self.resident[name, width, knobs]}
            for figure, power in (("start", 0.0), ("tile", 1.0), ("first", 0.0), ("lone", 0.5)):
                logarithm = value(figure)[i, WIDTHS.index(width)] + value(f"{figure} of")[j] + power * self.area[j]
                figures[figure] = _short(math.exp(logarithm))
            factors = {fact: _short(math.exp(value(f"{fact} of")[j])) for fact in OWN}
            figures["factors"] = {fact: factor for fact, factor in factors.items() if factor != 1.0}
            by_width[str(width)].append(figures)
        return {
            "factors": {f: _short(math.exp(v)) for f, v in zip(FACTS, value("factors")[i], strict=True)},
            **{
                power: dict(zip(("causal", "full"), map(_short, value(power)[i]), strict=True))
                for power in ("tail", "busiest")
            },
            "memory": _short(math.exp(value("memory")[i])) if self.direction == "fwd" else 0.0,
            "widths": by_width,
        }


def _short(value: float) -> float:
    return float(f"{value:.3g}")
