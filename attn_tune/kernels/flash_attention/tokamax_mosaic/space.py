"""The configs worth trying, nearest to the untuned choice first."""

import functools
import itertools
from collections.abc import Iterable, Iterator

from attn_tune.kernels.flash_attention.tokamax_mosaic.config import (
    BackwardConfig,
    DkvConfig,
    DqConfig,
    ForwardConfig,
    Launch,
)
from attn_tune.kernels.flash_attention.tokamax_mosaic.limits import infeasible
from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.libraries.features import visible_bounds
from attn_tune.kernels.lang.libraries.mosaic import BLOCKS, FORWARD_GROUPS, WARPGROUP_ROWS, is_light
from attn_tune.kernels.lang.space import first_feasible, nearest_feasible
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

_Q_BLOCKS = tried(ForwardConfig, "block_q")
# Multiprocessors of an H100; where fewer blocks than that have work, keys are worth splitting.
_UNITS = 132


def forward_candidates(problem: Problem, device: Device) -> tuple[ForwardConfig, ...]:
    """Forward configs. Keys are split, and heads folded, only where there are few rows."""
    p = problem
    folds = (False, True) if p.group_size > 1 and p.q_len < _rows(_Q_BLOCKS[-1]) else (False,)
    configs = (
        ForwardConfig(
            block_q=q,
            block_kv=kv,
            num_stages=stages,
            persistent=persistent,
            split_k=split,
            fold_q_sequence_heads=fold,
        )
        for q, kv, stages, persistent, fold in itertools.product(
            _Q_BLOCKS, BLOCKS, tried(ForwardConfig, "num_stages"), (False, True), folds
        )
        for split in _splits(p, device, q)
        if (q == WARPGROUP_ROWS or p.q_len > _rows(WARPGROUP_ROWS))
        and is_light(q * (p.v_head_dim + kv))
        and _fills(stages, -(-p.kv_len // (kv * split)), persistent)
        and kv < p.kv_len + WARPGROUP_ROWS
    )
    return _ordered(forward_heuristic(p, device), p, device, configs)


def dq_candidates(problem: Problem, device: Device) -> tuple[DqConfig, ...]:
    """Configs of the dq launch."""
    p = problem
    configs = (
        DqConfig(block_q=q, block_kv=kv, num_stages=stages, compute_warpgroups=groups)
        for q, kv, stages, groups in _backward_grid()
        if is_light(q * (p.head_dim + 2 * kv)) and _fills(stages, -(-p.kv_len // kv))
    )
    return _ordered(backward_heuristic(p, device).dq, p, device, configs)


def dkv_candidates(problem: Problem, device: Device) -> tuple[DkvConfig, ...]:
    """Configs of the dk/dv launch."""
    p = problem
    configs = (
        DkvConfig(block_q=q, block_kv=kv, num_stages=stages, compute_warpgroups=groups)
        for q, kv, stages, groups in _backward_grid()
        if is_light(kv * (p.head_dim + p.v_head_dim + 2 * q)) and _fills(stages, -(-p.q_len // q))
    )
    return _ordered(backward_heuristic(p, device).dkv, p, device, configs)


def forward_heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """64 rows a warpgroup; persistent unless causal; 128 keys where they fit, 64 elsewhere."""
    persistent = not problem.causal
    configs = (
        ForwardConfig(block_q=64, block_kv=kv, num_stages=2, persistent=stays)
        for kv, stays in ((128, persistent), (64, persistent), (64, False))
    )
    return _first_feasible(problem, device, configs)


def backward_heuristic(problem: Problem, device: Device) -> BackwardConfig:
    """The smallest tiles, for as many warpgroups and stages as fit."""

    def launches[T: (DqConfig, DkvConfig)](cls: type[T]) -> Iterator[T]:
        for stages, groups in ((2, 2), (1, 2), (1, 1)):
            yield cls(block_q=64, block_kv=64, num_stages=stages, compute_warpgroups=groups)

    return BackwardConfig(
        dq=_first_feasible(problem, device, launches(DqConfig)),
        dkv=_first_feasible(problem, device, launches(DkvConfig)),
    )


def _backward_grid() -> Iterator[tuple[int, int, int, int]]:
    return itertools.product(BLOCKS, BLOCKS, tried(DqConfig, "num_stages"), tried(DqConfig, "compute_warpgroups"))


def _rows(block_q: int) -> int:
    return FORWARD_GROUPS * block_q


def _splits(p: Problem, device: Device, block_q: int) -> Iterator[int]:
    blocks = p.batch * p.num_q_heads * -(-p.q_len // _rows(block_q))
    splits_at_all = p.mask_dims is None and visible_bounds(p) == (None, None)
    for split in tried(ForwardConfig, "split_k"):
        # The last one fills the device once more than it has to.
        if split == 1 or (splits_at_all and blocks * split < 2 * (device.units or _UNITS)):
            yield split


def _fills(stages: int, tiles: int, persistent: bool = False) -> bool:
    """Whether there are as many tiles as stages; a persistent block goes on with those of its next rows."""
    return stages <= max(2, tiles) or persistent


def _first_feasible[T: Launch](problem: Problem, device: Device, configs: Iterable[T]) -> T:
    return first_feasible(configs, functools.partial(infeasible, problem, device))


def _ordered[T: Launch](start: T, problem: Problem, device: Device, configs: Iterable[T]) -> tuple[T, ...]:
    reason = functools.partial(infeasible, problem, device)
    return nearest_feasible(start, configs, reason, doubling=("block_q", "block_kv", "split_k"))
