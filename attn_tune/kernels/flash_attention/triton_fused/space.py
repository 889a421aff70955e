"""The configs worth trying, nearest to the untuned choice first."""

import functools
from collections.abc import Iterator

from attn_tune.kernels.flash_attention._triton.space import with_caps
from attn_tune.kernels.flash_attention.costs import width
from attn_tune.kernels.flash_attention.triton_fused.config import BackwardConfig
from attn_tune.kernels.flash_attention.triton_fused.limits import accumulators, fits
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import has_tensor_memory
from attn_tune.kernels.lang.triton.tiles import (
    block_cap,
    cut_tile,
    fitted,
    grid,
    nearest_first,
    owned_sizes,
    walked_sizes,
)
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

# (block_q, block_k, num_warps, num_stages) by head dim up to. A thread holds dk and dv (``block_k * (h + v)``), a tile
# of logits twice (themselves and the gradient of the weights), then one of dq, over ``32 * num_warps`` threads. On
# sm_90 at H128 that is 128 + 2 * 16 + 16 for 32x128: 227 registers with addresses and statistics, none spilled;
# 64x128 has 128 + 2 * 32 + 32 and spills a little. More keys a program mean fewer additions to dq, which all go to
# the L2 cache: 128 before anything else, up to H128. Chosen by compiling with Triton 3.9, not by measuring.
_SM90 = {64: (64, 128, 8, 3), 128: (32, 128, 8, 3), 256: (32, 32, 8, 2)}
_SM80 = {64: (64, 128, 8, 2), 128: (32, 128, 8, 2), 256: (32, 32, 8, 2)}
_SM100 = {64: (64, 128, 8, 2), 128: (64, 128, 8, 2), 256: (32, 64, 8, 2)}
# Consumer GPUs: 99 KB of shared memory.
_SMALL = {64: (64, 64, 4, 2), 128: (32, 64, 8, 2), 256: (16, 32, 8, 2)}
_TABLES = {80: _SM80, 87: _SM80, 90: _SM90, 100: _SM100, 103: _SM100, 110: _SM100}
# Products of float32 are three passes of tf32, whose operands in parts take registers and shared memory of their own.
_FLOAT32 = {64: (32, 32, 4, 2), 128: (16, 32, 8, 2), 256: (16, 16, 8, 2)}


def heuristic(problem: Problem, device: Device) -> BackwardConfig:
    """The untuned config."""
    table = _TABLES.get(device.compute_capability or 0, _SMALL)
    if problem.dtype == "float32":
        table = _FLOAT32
    block_q, block_k, num_warps, num_stages = next(table[top] for top in sorted(table) if padded(width(problem)) <= top)
    if _has_features(problem):
        # Dropout bits, a bias and tanh need registers of their own: at H64 64x128 spills 336 bytes with all of them.
        block_q = max(16, block_q // 2)
    tile = BackwardConfig(
        block_q=min(block_q, block_cap(problem.q_len)),
        block_k=min(block_k, block_cap(problem.kv_len)),
        num_warps=num_warps,
        num_stages=num_stages,
        transposed_dq=_transposes(problem, device)[0],
    )
    return fitted(tile, functools.partial(fits, problem, device))


def adapt(tuned: Problem, problem: Problem, device: Device, config: BackwardConfig) -> BackwardConfig:
    """The tile, cut to the lengths."""
    return cut_tile(config, problem.q_len, problem.kv_len)


def candidates(problem: Problem, device: Device) -> tuple[BackwardConfig, ...]:
    """Tiles as for dk and dv alone, with dq either way round where both are worth trying."""
    tiles = with_caps(problem, device, _tiles(problem, device), accumulators)
    return nearest_first(heuristic(problem, device), tiles)


def _tiles(problem: Problem, device: Device) -> Iterator[BackwardConfig]:
    wide = width(problem) > 128
    ways = _transposes(problem, device)
    shapes = grid(
        device,
        problem.kv_len,
        problem.q_len,
        owned_sizes(128),
        walked_sizes(width(problem), 128),
        4,
    )
    for block_k, block_q, num_warps, num_stages in shapes:
        # The other way round, fewer than 64 rows have no warpgroups on Hopper.
        both = block_q >= 64 or device.compute_capability != 90
        # A tile of dq is as wide as the head, and gives more warps work than 32 keys would.
        for warps in (num_warps, 8) if wide and block_k == 32 and num_warps == 4 else (num_warps,):
            for transposed in ways if both else ways[:1]:
                yield BackwardConfig(
                    block_q=block_q,
                    block_k=block_k,
                    num_warps=warps,
                    num_stages=num_stages,
                    transposed_dq=transposed,
                )


def _transposes(problem: Problem, device: Device) -> tuple[bool, ...]:
    """The ways round that dq is worth computing, the better first.

    On Hopper the transposed product takes warpgroups at any ``block_q``, and on data-centre Blackwell fewer columns of
    tensor memory. Elsewhere it spills more wherever it was compiled, 7 KB at H256 on sm_80.
    """
    newer = device.compute_capability == 90 or has_tensor_memory(device)
    return (True, False) if newer and problem.dtype != "float32" else (False,)


def _has_features(problem: Problem) -> bool:
    """Something beside causal and window touches every pair of a tile."""
    return (
        problem.bias_dims is not None
        or problem.mask_dims is not None
        or problem.soft_cap is not None
        or problem.dropout_rate > 0
    )
