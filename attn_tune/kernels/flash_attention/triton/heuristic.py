"""The untuned choice: a table by architecture and head dim, made to fit lengths, dtype and shared memory."""

import dataclasses

from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.flash_attention.triton.config import (
    BackwardConfig,
    DkvConfig,
    DqConfig,
    ForwardConfig,
)
from attn_tune.kernels.flash_attention.triton.limits import (
    Tile,
    infeasible,
    shared_bytes_at_most,
    shared_limit,
)
from attn_tune.kernels.flash_attention.triton.static import padded
from attn_tune.schema.device import Device

# (block_q, block_k, num_warps, num_stages) of forward, dq and dk/dv, by head dim up to. Those of sm_90 did best, or
# within a few per cent of it, over causal bf16 shapes of 16k tokens swept on an H200 with Triton 3.9.
_SM90 = {
    # Two blocks of 4 warps on one multiprocessor overlap one's softmax with the other's products.
    64: ((128, 64, 4, 3), (128, 64, 4, 3), (32, 64, 4, 4)),
    128: ((64, 64, 4, 3), (128, 32, 8, 3), (64, 128, 8, 3)),
    256: ((128, 32, 8, 3), (128, 32, 8, 3), (64, 32, 4, 3)),
}
_SM80 = {
    64: ((128, 64, 4, 3), (64, 64, 4, 3), (64, 64, 4, 2)),
    128: ((128, 64, 8, 3), (64, 64, 8, 2), (64, 64, 8, 2)),
    256: ((64, 32, 4, 2), (64, 32, 8, 2), (32, 32, 4, 2)),
}
# 99 KB of shared memory: consumer Ampere, Ada and Blackwell.
_SMALL = {
    64: ((128, 64, 4, 2), (64, 64, 4, 2), (64, 64, 4, 2)),
    128: ((64, 64, 4, 2), (64, 64, 8, 2), (64, 64, 8, 2)),
    256: ((64, 32, 4, 2), (32, 32, 4, 2), (32, 32, 4, 2)),
}
_TABLES = {80: _SM80, 87: _SM80, 90: _SM90, 100: _SM90, 103: _SM90, 110: _SM90}

# Dropout bits, bias and tanh need registers of their own: with 64 pairs a thread the forward spills 432 bytes at H64.
_MOST_FEATURE_PAIRS = 32


def forward_heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """The forward's untuned config."""
    return _fitted(problem, device, ForwardConfig, 0)


def backward_heuristic(problem: Problem, device: Device) -> BackwardConfig:
    """The backward's untuned config."""
    return BackwardConfig(
        dq=_fitted(problem, device, DqConfig, 1), dkv=_fitted(problem, device, DkvConfig, 2)
    )


def block_cap(length: int) -> int:
    """The largest block worth having for a length: the power of two, at least 16, that covers it."""
    return max(16, 1 << (length - 1).bit_length())


def _fitted[T: (ForwardConfig, DqConfig, DkvConfig)](
    problem: Problem, device: Device, cls: type[T], column: int
) -> T:
    table = _TABLES.get(device.compute_capability or 0, _SMALL)
    width = max(padded(problem.head_dim), padded(problem.v_head_dim))
    row = next(table[bound] for bound in sorted(table) if width <= bound)
    block_q, block_k, num_warps, num_stages = row[column]
    tile = cls(
        block_q=min(block_q, block_cap(problem.q_len)),
        block_k=min(block_k, block_cap(problem.kv_len)),
        num_warps=num_warps,
        num_stages=num_stages,
    )
    if problem.dtype == "float32":
        # Three passes of tf32 hold three tiles where one pass holds one: with the owned block whole, the forward at H64
        # spills 576 bytes on sm_100 and dk/dv at H256 1.5 KB.
        tile = _halved(tile)
        owned = "block_k" if isinstance(tile, DkvConfig) else "block_q"
        tile = dataclasses.replace(tile, **{owned: max(16, _owned(tile) // 2)})
    if _has_features(problem) and _pairs_per_thread(tile) > _MOST_FEATURE_PAIRS:
        tile = dataclasses.replace(tile, num_warps=2 * tile.num_warps)
    while _owned(tile) < 8 * tile.num_warps:
        tile = dataclasses.replace(tile, num_warps=tile.num_warps // 2)
    while not _fits(problem, device, tile) and _smaller(tile) != tile:
        tile = _smaller(tile)
    return tile


def _has_features(problem: Problem) -> bool:
    """Something beside causal and window touches every pair of a tile."""
    return (
        problem.bias_dims is not None
        or problem.mask_dims is not None
        or problem.soft_cap is not None
        or problem.dropout_rate > 0
    )


def _pairs_per_thread(tile: Tile) -> int:
    return tile.block_q * tile.block_k // (32 * tile.num_warps)


def _fits(problem: Problem, device: Device, tile: Tile) -> bool:
    enough = shared_bytes_at_most(problem, device, tile) <= shared_limit(device)
    return enough and infeasible(problem, device, tile) is None


def _smaller[T: Tile](tile: T) -> T:
    """One step down: fewer stages, then a shorter walked block, then a shorter owned one.

    Two stages are the least: without a pipeline ``mma.sync`` takes more shared memory, not less.
    """
    if tile.num_stages > 2:
        return dataclasses.replace(tile, num_stages=tile.num_stages - 1)
    return _halved(tile)


def _halved[T: Tile](tile: T) -> T:
    walked, owned = (
        ("block_q", "block_k") if isinstance(tile, DkvConfig) else ("block_k", "block_q")
    )
    name = walked if getattr(tile, walked) > 16 else owned
    return dataclasses.replace(tile, **{name: max(16, getattr(tile, name) // 2)})


def _owned(tile: Tile) -> int:
    return tile.block_k if isinstance(tile, DkvConfig) else tile.block_q
