"""The cost model: makes a time with its uncertainty of a compiler's schedule and a walk over blocks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attn_tune.ops.cost_walk import CostWalk, Walk
from attn_tune.schema.device import Device
from attn_tune.schema.trial import Prediction
from attn_tune.tuner.offline.predict.schedule import PIPELINE_STEPS, KernelSchedule, Stretch
from attn_tune.tuner.offline.predict.tpu_core import Core, core_of

MODEL = "bundles 2"
_LAUNCH_NS = 2_000
# What a block costs that no bundle shows: starting its copies and waiting for their latency. Of the published shapes on
# v6e only those with head dim 128 chose it: any value up to 150 ranks them best. The others are held out, and hardly
# care: 22 or 23 of 24 winners are in the first tenth for any value up to 300.
_VISIT_NS = 150
# Starts of copies are alike if their cycles differ by no more; shorter stretches are none.
_ALIKE, _LEAST_START = 0.05, 50
# How far off predictions were of published times, four out of five (benchmarks/results/tpu).
_SPREAD = 1.8


def predict(
    schedules: Sequence[KernelSchedule],
    walk: CostWalk,
    problem: Any,
    config: Mapping[str, Any],
    device: Device,
) -> Prediction | None:
    """Predict the time of launches that run one after the other; None where the time of one is unknown.

    Launches without matrix products (casts, copies) are left out: they are the same for every config.
    """
    core = core_of(device)
    launches = [s for s in schedules if s.multiplies]
    walks = [walk.of_launch(s.name, problem, config) for s in launches]
    if core is None or not launches or any(one is None for one in walks):
        return None
    terms: dict[str, float] = {}
    for schedule, one in zip(launches, walks, strict=True):
        assert one is not None
        for name, ns in _launch_ns(schedule, one, core).items():
            terms[name] = terms.get(name, 0.0) + ns
    total = sum(terms.values())
    counts = {
        "bundles": sum(s.bundles for s in launches),
        "spill_instructions": sum(_units(s, "spill") for s in launches),
        "matmul_instructions": sum(_units(s, "matmul") for s in launches),
    }
    return Prediction(
        ns=max(1, round(total)),
        low_ns=max(1, math.floor(total / _SPREAD)),
        high_ns=math.ceil(total * _SPREAD),
        model=MODEL,
        terms={**{f"{name}_ns": round(ns) for name, ns in terms.items()}, **counts},
    )


def _launch_ns(schedule: KernelSchedule, walk: Walk, core: Core) -> dict[str, float]:
    """Nanoseconds by their cause: ``once``, ``steps``, ``visits``, ``rests``, ``copies``, ``latency``."""
    cores = _cores(schedule, walk, core)
    cycles = _cycles_of_copier(schedule) if walk.copies_itself else _cycles(schedule, walk)
    # A copy runs beside the bundles of the step before; what is longer is waited for.
    per_visit = cycles["visits"] + cycles["steps"] * _steps_of_visit(schedule, walk)
    visit_wait = max(0.0, walk.visit_bytes / core.bytes_per_cycle - per_visit)
    visits_per_rest = walk.visits / max(1, walk.rests)
    slack = max(0.0, per_visit * visits_per_rest - walk.visit_bytes * visits_per_rest / core.bytes_per_cycle)
    rest_wait = max(0.0, walk.rest_bytes / core.bytes_per_cycle - cycles["rests"] - slack)
    spent = {
        "once": cycles["once"] * cores,
        "steps": cycles["steps"] * _steps(schedule, walk),
        "visits": cycles["visits"] * walk.visits,
        "rests": cycles["rests"] * walk.rests,
        "copies": visit_wait * walk.visits + rest_wait * walk.rests,
    }
    ns_per_cycle = 1e3 / core.clock_mhz / cores
    return {
        **{name: value * ns_per_cycle for name, value in spent.items()},
        "latency": _VISIT_NS * walk.visits / cores,
        "launch": _LAUNCH_NS,
    }


def _cycles(schedule: KernelSchedule, walk: Walk) -> dict[str, float]:
    """Cycles of the launch, of each step, visit and resting block; the compiler's pipeline copies blocks."""
    cycles: dict[str, float] = {"once": 0, "steps": 0, "visits": 0, "rests": 0}
    bodies = [s.bundles * _inner_trips(s) for s in schedule.stretches if _kind(s) == "visits"]
    for stretch in schedule.stretches:
        if (kind := _kind(stretch)) != "visits":
            cycles[kind] += stretch.bundles * _inner_trips(stretch)
    cycles["visits"] = _visit_cycles(schedule, bodies, walk.cut / max(1, walk.visits))
    return cycles


def _cycles_of_copier(schedule: KernelSchedule) -> dict[str, float]:
    """Cycles like ``_cycles`` of a launch that copies its blocks by itself.

    What stands as deep in loops as the products, or under several branches where that is the grid's loop, is executed
    for each block. Of two stretches alike there, one starts the first copies of all, the other those of a next block.
    """
    depth = max(len(s.loops) for s in schedule.stretches if s.multiplies)
    cycles: dict[str, float] = {"once": 0, "steps": 0, "visits": 0, "rests": 0}
    starts: list[int] = []
    for stretch in schedule.stretches:
        inner, spent = len(stretch.loops), stretch.bundles * math.prod(trips or 1 for trips in stretch.loops[depth:])
        is_of_step = inner == 1 and (depth > 1 or (stretch.skippable <= 1 and not stretch.multiplies))
        if not inner:
            cycles["once"] += spent
        elif is_of_step:
            cycles["steps"] += spent
        elif inner < depth:
            cycles["rests"] += spent
        elif stretch.multiplies or spent < _LEAST_START:
            cycles["visits"] += spent
        elif not any(math.isclose(spent, other, rel_tol=_ALIKE) for other in starts):
            cycles["visits"] += spent
            starts.append(spent)
    return cycles


def _steps_of_visit(schedule: KernelSchedule, walk: Walk) -> float:
    """Steps of the grid that a copy runs beside: one, or of a launch that copies by itself those of a visit."""
    return _steps(schedule, walk) / max(1, walk.visits) if walk.copies_itself else 1.0


def _steps(schedule: KernelSchedule, walk: Walk) -> int:
    """Steps of the grid. One whose length is computed when it runs goes over the blocks that are visited only."""
    if schedule.steps is not None:
        return schedule.steps
    return walk.visits if schedule.grid_steps is None else walk.steps


def _visit_cycles(schedule: KernelSchedule, bodies: Sequence[int], cut: float) -> float:
    """Cycles of one visit. Two like bodies are one block's with and without a mask: only one of them is executed.

    ``cut`` is the share of blocks that are masked.
    """
    matmuls = {s.units["matmul"] for s in schedule.stretches if s.multiplies and s.skippable}
    if len(bodies) == 2 and len(matmuls) == 1:
        return max(bodies) * cut + min(bodies) * (1 - cut)
    return sum(bodies)


def _kind(stretch: Stretch) -> str:
    """The unit of work that a stretch belongs to: a computed block, a resting one, every step, or the launch."""
    if not stretch.loops:
        return "once"
    if stretch.multiplies:
        return "visits"
    # One branch leaves out the steps that only fill or drain the pipeline.
    return "steps" if stretch.skippable <= 1 and len(stretch.loops) == 1 else "rests"


def _inner_trips(stretch: Stretch) -> int:
    """The trips of one step through a stretch; a count that the compiler did not know counts once."""
    return math.prod(trips or 1 for trips in stretch.loops[1:])


def _cores(schedule: KernelSchedule, walk: Walk, core: Core) -> int:
    """Cores that share the grid: two where the chip has them and the compiler's loop half of the steps.

    Where the trips are computed when it runs, the launch says whether the grid may be shared.
    """
    trips = schedule.grid_steps
    if core.per_device < 2:
        return 1
    if trips is None:
        return 2 if schedule.is_parallel else 1
    return 2 if 2 * (trips - PIPELINE_STEPS) <= _steps(schedule, walk) else 1


def _units(schedule: KernelSchedule, unit: str) -> int:
    return sum(stretch.units.get(unit, 0) for stretch in schedule.stretches)
