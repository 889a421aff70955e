"""The configs worth trying, nearest to the untuned choice first."""

import functools
import itertools
from collections.abc import Iterable, Iterator

from attn_tune.kernels.flash_attention.mosaic_gpu.config import (
    BackwardConfig,
    DkvConfig,
    DqConfig,
    ForwardConfig,
    Launch,
)
from attn_tune.kernels.flash_attention.mosaic_gpu.limits import infeasible
from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.libraries.features import visible_bounds
from attn_tune.kernels.lang.libraries.mosaic import BLOCKS, is_light
from attn_tune.kernels.lang.space import first_feasible, nearest_feasible
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device


def forward_candidates(problem: Problem, device: Device) -> tuple[ForwardConfig, ...]:
    """Forward configs; those of the pipeline emitter where nothing is hidden."""
    variants = [{}]
    if visible_bounds(problem) == (None, None):
        variants += [{"pipeline_emitter": True, "schedule_barrier": b} for b in (True, False)]
    configs = (
        ForwardConfig(block_q=q, block_kv=kv, max_concurrent_steps=steps, **variant)
        for q, kv, steps, variant in itertools.product(
            BLOCKS, BLOCKS, tried(ForwardConfig, "max_concurrent_steps"), variants
        )
        if is_light(q * (problem.head_dim + kv)) and _is_new(steps, problem.kv_len // kv)
    )
    return _ordered(forward_heuristic(problem, device), problem, device, configs)


def dq_candidates(problem: Problem, device: Device) -> tuple[DqConfig, ...]:
    """Configs of the dq launch."""
    configs = (
        DqConfig(block_q=q, block_kv=kv, max_concurrent_steps=steps, compute_warpgroups=groups)
        for q, kv, steps, groups in _backward_grid()
        if is_light(q * (problem.head_dim + 2 * kv))
        and _is_new(steps, min(problem.q_len // (q * groups), problem.kv_len // kv))
    )
    return _ordered(backward_heuristic(problem, device).dq, problem, device, configs)


def dkv_candidates(problem: Problem, device: Device) -> tuple[DkvConfig, ...]:
    """Configs of the dk/dv launch."""
    configs = (
        DkvConfig(block_q=q, block_kv=kv, max_concurrent_steps=steps, compute_warpgroups=groups)
        for q, kv, steps, groups in _backward_grid()
        if is_light(2 * kv * (problem.head_dim + q))
        and _is_new(steps, min(problem.kv_len // (kv * groups), problem.q_len // q))
    )
    return _ordered(backward_heuristic(problem, device).dkv, problem, device, configs)


def forward_heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """Two warpgroups of 64 rows and the most keys a step, up to 128, that fit."""
    configs = (ForwardConfig(block_q=64, block_kv=kv, max_concurrent_steps=2) for kv in (128, 64))
    return _first_feasible(problem, device, configs)


def backward_heuristic(problem: Problem, device: Device) -> BackwardConfig:
    """The smallest tiles, for two warpgroups where those fit."""

    def launches[T: (DqConfig, DkvConfig)](cls: type[T]) -> Iterator[T]:
        for groups in (2, 1):
            yield cls(block_q=64, block_kv=64, max_concurrent_steps=2, compute_warpgroups=groups)

    return BackwardConfig(
        dq=_first_feasible(problem, device, launches(DqConfig)),
        dkv=_first_feasible(problem, device, launches(DkvConfig)),
    )


def _backward_grid() -> Iterator[tuple[int, int, int, int]]:
    return itertools.product(
        BLOCKS,
        BLOCKS,
        tried(DqConfig, "max_concurrent_steps"),
        tried(DqConfig, "compute_warpgroups"),
    )


def _is_new(steps: int, tiles: int) -> bool:
    """Whether the library does not cut ``steps`` to a number that is tried anyway."""
    return steps == 2 or steps <= tiles


def _first_feasible[T: Launch](problem: Problem, device: Device, configs: Iterable[T]) -> T:
    return first_feasible(configs, functools.partial(infeasible, problem, device))


def _ordered[T: Launch](start: T, problem: Problem, device: Device, configs: Iterable[T]) -> tuple[T, ...]:
    reason = functools.partial(infeasible, problem, device)
    return nearest_feasible(start, configs, reason, doubling=("block_q", "block_kv"))
