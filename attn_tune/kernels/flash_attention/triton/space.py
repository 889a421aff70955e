"""The configs worth trying, nearest to the untuned choice first."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator

from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.flash_attention.triton.config import DkvConfig, DqConfig, ForwardConfig
from attn_tune.kernels.flash_attention.triton.heuristic import (
    backward_heuristic,
    block_cap,
    forward_heuristic,
)
from attn_tune.kernels.flash_attention.triton.limits import Tile
from attn_tune.schema.device import Device


def forward_candidates(problem: Problem, device: Device) -> tuple[ForwardConfig, ...]:
    """Forward configs."""
    tiles = (
        ForwardConfig(block_q=owned, block_k=walked, num_warps=warps, num_stages=stages)
        for owned, walked, warps, stages in _grid(
            device, problem.q_len, problem.kv_len, _owned_sizes(256), _walked_sizes(problem, 256), 5
        )
    )
    return _nearest_first(forward_heuristic(problem, device), tiles)


def dq_candidates(problem: Problem, device: Device) -> tuple[DqConfig, ...]:
    """Configs of the dq launch."""
    tiles = (
        DqConfig(block_q=owned, block_k=walked, num_warps=warps, num_stages=stages)
        for owned, walked, warps, stages in _grid(
            device, problem.q_len, problem.kv_len, _owned_sizes(128), _walked_sizes(problem, 128), 4
        )
    )
    return _nearest_first(backward_heuristic(problem, device).dq, tiles)


def dkv_candidates(problem: Problem, device: Device) -> tuple[DkvConfig, ...]:
    """Configs of the dk/dv launch."""
    tiles = (
        DkvConfig(block_q=walked, block_k=owned, num_warps=warps, num_stages=stages)
        for owned, walked, warps, stages in _grid(
            device, problem.kv_len, problem.q_len, _owned_sizes(128), _walked_sizes(problem, 128), 4
        )
    )
    return _nearest_first(backward_heuristic(problem, device).dkv, tiles)


def _owned_sizes(most: int) -> tuple[int, ...]:
    return tuple(size for size in (16, 32, 64, 128, 256) if size <= most)


def _walked_sizes(problem: Problem, most: int) -> tuple[int, ...]:
    # Wide heads walk in short steps: at H256 a tile of 128 keys and its values are 128 KB a stage.
    wide = max(problem.head_dim, problem.v_head_dim) > 128
    return tuple(s for s in (16, 32, 64, 128, 256) if s <= (most // 2 if wide else most))


def _grid(
    device: Device,
    owned_length: int,
    walked_length: int,
    owned_sizes: Iterable[int],
    walked_sizes: Iterable[int],
    most_stages: int,
) -> Iterator[tuple[int, int, int, int]]:
    """``(owned, walked, num_warps, num_stages)``, without sizes that lengths or architecture make pointless."""
    owned_cap, walked_cap = block_cap(owned_length), block_cap(walked_length)
    hopper = (device.compute_capability or 0) == 90
    for owned, walked in itertools.product(owned_sizes, walked_sizes):
        if owned > owned_cap or walked > walked_cap:
            continue
        # Tiny tiles only where the length is tiny: elsewhere they read the walked arrays too often.
        if owned < min(owned_cap, 32) or walked < min(walked_cap, 32 if walked_cap <= 64 else 16):
            continue
        blocks = -(-walked_length // walked)
        for warps in _warps(owned, hopper):
            for stages in range(1, most_stages + 1):
                if stages == 1 or stages <= blocks:
                    yield owned, walked, warps, stages


def _warps(owned: int, hopper: bool) -> tuple[int, ...]:
    """Each warp needs 16 rows of its own; on Hopper four warps share a ``wgmma`` of 64."""
    if owned <= 32:
        return (2, 4)
    if owned == 64:
        return (4, 8) if hopper else (2, 4, 8)
    return (4, 8) if owned == 128 else (8, 16)


def _nearest_first[T: Tile](start: T, tiles: Iterable[T]) -> tuple[T, ...]:
    """``start``, then the others by how many doublings away they are; all distinct."""

    def distance(tile: T) -> tuple:
        steps = [
            abs(math.log2(getattr(tile, name) / getattr(start, name)))
            for name in ("block_q", "block_k", "num_warps")
        ]
        return (sum(steps) + abs(tile.num_stages - start.num_stages), dataclasses.astuple(tile))

    others = sorted(set(tiles) - {start}, key=distance)
    return (start, *others)
