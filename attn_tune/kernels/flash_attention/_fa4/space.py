"""The configs worth trying, nearest to the untuned choice first; that is the library's own table."""

import dataclasses
import functools
import itertools

from attn_tune.kernels.flash_attention._fa4.config import (
    BACKWARD_KEYS,
    BACKWARD_ROWS,
    FORWARD_KEYS,
    BackwardConfig,
    ForwardConfig,
)
from attn_tune.kernels.flash_attention._fa4.limits import backward_infeasible, forward_infeasible
from attn_tune.kernels.flash_attention._fa4.shapes import has_mask
from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.libraries.features import visible_bounds
from attn_tune.kernels.lang.space import nearest_feasible
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

_FLAGS = (False, True)


def forward_heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """The library's table for Hopper, by the larger head dim."""
    has_edge, is_window = _edges(problem)
    match max(problem.head_dim, problem.v_head_dim):
        case h if h <= 64:
            return ForwardConfig(block_q=192, block_k=128)
        case h if h <= 96:
            return ForwardConfig(block_q=192, block_k=128 if has_edge else 144, p_in_registers=False)
        case h if h <= 128:
            return ForwardConfig(block_q=128, block_k=128)
        case h if h <= 192:
            wide = 128 if problem.v_head_dim <= 128 else 112
            return ForwardConfig(block_q=128, block_k=96 if is_window else wide)
        case _:
            return ForwardConfig(block_q=128, block_k=64 if is_window else 80)


def backward_heuristic(problem: Problem, device: Device) -> BackwardConfig:
    """The library's table for Hopper, by the head dim of queries and keys."""
    has_edge, _ = _edges(problem)
    match problem.head_dim:
        case h if h <= 64 and problem.v_head_dim <= 96:
            return BackwardConfig(block_q=128, block_k=128, groups_dq=2)
        case h if h <= 96 and problem.v_head_dim <= 128:
            return BackwardConfig(block_q=64, block_k=128, one_makes_dq=True)
        case h if h <= 128 and problem.v_head_dim <= 128:
            rows = 64 if has_edge else 80
            return BackwardConfig(block_q=rows, block_k=128, transpose_dq=rows % 64 != 0)
        case h if h <= 192 and problem.v_head_dim <= 192:
            return BackwardConfig(
                block_q=64,
                block_k=96,
                stage_dout=problem.v_head_dim <= 128,
                stage_ds=False,
                transpose_s=False,
                transpose_dkv=True,
            )
        case _:
            return BackwardConfig(block_q=64, block_k=64, stages=1, transpose_s=False, groups_dkv=1)


def forward_candidates(problem: Problem, device: Device) -> tuple[ForwardConfig, ...]:
    """Forward configs; heads are packed only where they share keys."""
    p = problem
    reason = functools.partial(forward_infeasible, p, device)
    packs = _FLAGS if p.group_size > 1 and not has_mask(p) else (False,)
    configs = (
        ForwardConfig(block_q=q, block_k=k, num_stages=n, p_in_registers=registers, overlap=overlap, pack_heads=pack)
        for q, k, n, registers, overlap, pack in itertools.product(
            tried(ForwardConfig, "block_q"), FORWARD_KEYS, tried(ForwardConfig, "num_stages"), _FLAGS, _FLAGS, packs
        )
    )
    start = forward_heuristic(p, device)
    return nearest_feasible(start, configs, reason, doubling=("block_q", "block_k"))


def backward_candidates(problem: Problem, device: Device) -> tuple[BackwardConfig, ...]:
    """Backward configs. They depend on head dims, on whether heads are grouped, and on shared memory alone."""
    start = backward_heuristic(problem, device)
    return _backward_candidates(start, problem.head_dim, problem.v_head_dim, problem.group_size > 1, device)


@functools.lru_cache(maxsize=64)
def _backward_candidates(
    start: BackwardConfig, head_dim: int, v_head_dim: int, grouped: bool, device: Device
) -> tuple[BackwardConfig, ...]:
    one = Problem(
        batch=1,
        q_len=1,
        kv_len=1,
        num_q_heads=1 + grouped,
        num_kv_heads=1,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
    )
    reason = functools.partial(backward_infeasible, one, device)
    # More stages take more of everything: what does not fit with one is not tried with two.
    configs = (
        dataclasses.replace(config, stages=stages, stage_dout=dout, stage_ds=ds)
        for config in _one_stage()
        if reason(config) is None
        for stages, dout, ds in ((1, True, True), *((2, *flags) for flags in itertools.product(_FLAGS, _FLAGS)))
    )
    return nearest_feasible(start, configs, reason, doubling=("block_q", "block_k", "stages"))


@functools.cache
def _one_stage() -> tuple[BackwardConfig, ...]:
    """Every backward of one stage, whatever its problem."""
    return tuple(
        BackwardConfig(
            block_q=q,
            block_k=k,
            stages=1,
            transpose_s=transpose_s,
            transpose_dkv=transpose_dkv,
            transpose_dq=transpose_dq,
            groups_s=s,
            groups_dkv=dkv,
            groups_dq=dq,
            warpgroups=groups,
            one_makes_dq=alone,
        )
        for groups, alone in itertools.product(tried(BackwardConfig, "warpgroups"), _FLAGS)
        for q, k, transpose_s, transpose_dkv, transpose_dq in itertools.product(
            BACKWARD_ROWS, BACKWARD_KEYS, _FLAGS, _FLAGS, _FLAGS
        )
        for s, dkv, dq in itertools.product((1, groups), (1, groups), (1,) if alone else (1, groups))
    )


def _edges(p: Problem) -> tuple[bool, bool]:
    """Whether the kernel's own mask has an edge at all, and whether it is more than the causal one."""
    bounds = (None, None) if p.has_positions else visible_bounds(p)
    return bounds != (None, None), bounds not in ((None, None), (None, 0))
