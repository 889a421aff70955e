"""The configs worth trying, nearest to the untuned choice first."""

from attn_tune.kernels.flash_attention._triton.space import with_caps
from attn_tune.kernels.flash_attention.costs import width
from attn_tune.kernels.flash_attention.triton.config import DkvConfig, DqConfig, ForwardConfig
from attn_tune.kernels.flash_attention.triton.heuristic import (
    backward_heuristic,
    forward_heuristic,
)
from attn_tune.kernels.lang.triton.tiles import grid, nearest_first, owned_sizes, walked_sizes
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device


def forward_candidates(problem: Problem, device: Device) -> tuple[ForwardConfig, ...]:
    """Forward configs."""
    tiles = (
        ForwardConfig(block_q=owned, block_k=walked, num_warps=warps, num_stages=stages)
        for owned, walked, warps, stages in grid(
            device,
            problem.q_len,
            problem.kv_len,
            owned_sizes(256),
            walked_sizes(width(problem), 256),
            5,
        )
    )
    return nearest_first(forward_heuristic(problem, device), with_caps(problem, device, tiles))


def dq_candidates(problem: Problem, device: Device) -> tuple[DqConfig, ...]:
    """Configs of the dq launch."""
    tiles = (
        DqConfig(block_q=owned, block_k=walked, num_warps=warps, num_stages=stages)
        for owned, walked, warps, stages in grid(
            device,
            problem.q_len,
            problem.kv_len,
            owned_sizes(128),
            walked_sizes(width(problem), 128),
            4,
        )
    )
    return nearest_first(backward_heuristic(problem, device).dq, with_caps(problem, device, tiles))


def dkv_candidates(problem: Problem, device: Device) -> tuple[DkvConfig, ...]:
    """Configs of the dk/dv launch."""
    tiles = (
        DkvConfig(block_q=walked, block_k=owned, num_warps=warps, num_stages=stages)
        for owned, walked, warps, stages in grid(
            device,
            problem.kv_len,
            problem.q_len,
            owned_sizes(128),
            walked_sizes(width(problem), 128),
            4,
        )
    )
    return nearest_first(backward_heuristic(problem, device).dkv, with_caps(problem, device, tiles))
