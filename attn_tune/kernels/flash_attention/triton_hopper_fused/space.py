"""The configs worth trying, nearest to the untuned choice first."""

import dataclasses
import itertools
from collections.abc import Iterator

from attn_tune.kernels.flash_attention.costs import units
from attn_tune.kernels.flash_attention.triton_hopper_fused.config import BackwardConfig
from attn_tune.kernels.flash_attention.triton_hopper_fused.limits import infeasible
from attn_tune.kernels.flash_attention.triton_hopper_fused.plan import num_tiles
from attn_tune.kernels.knobs import tried
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

_SEARCHED = ("block_q", "num_stages", "staged_dq", "ahead")


def heuristic(problem: Problem, device: Device) -> BackwardConfig:
    """The untuned config: the most rows that fit the registers beside dk and dv."""
    rows = 128 if problem.head_dim <= 64 else 64
    return BackwardConfig(block_q=rows, num_stages=2, num_programs=_programs(problem, device))


def adapt(tuned: Problem, problem: Problem, device: Device, config: BackwardConfig) -> BackwardConfig:
    """The config, on all multiprocessors."""
    del tuned
    return dataclasses.replace(config, num_programs=_programs(problem, device))


def candidates(problem: Problem, device: Device) -> tuple[BackwardConfig, ...]:
    """Both tiles of rows, stages, and both ways to add dq and to begin a step."""
    start = heuristic(problem, device)
    feasible = [c for c in _all(start) if infeasible(problem, device, c) is None]
    return (start, *sorted((c for c in feasible if c != start), key=lambda c: _distance(start, c)))


def _all(start: BackwardConfig) -> Iterator[BackwardConfig]:
    for chosen in itertools.product(*(tried(BackwardConfig, name) for name in _SEARCHED)):
        yield dataclasses.replace(start, **dict(zip(_SEARCHED, chosen, strict=True)))


def _programs(problem: Problem, device: Device) -> int:
    return min(num_tiles(problem), units(device))


def _distance(start: BackwardConfig, other: BackwardConfig) -> int:
    """The number of knobs that differ."""
    return sum(getattr(start, n) != getattr(other, n) for n in _SEARCHED)
