"""The configs worth trying, nearest to the untuned choice first."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.flash_attention.triton.config import DkvConfig, DqConfig, ForwardConfig
from attn_tune.kernels.flash_attention.triton.heuristic import (
    backward_heuristic,
    block_cap,
    forward_heuristic,
)
from attn_tune.kernels.flash_attention.triton.limits import Tile, accumulators, shared_bytes
from attn_tune.schema.device import Device

# Of one multiprocessor, sm_80 to sm_100; those with less shared memory hold fewer blocks than is thought here.
_SM_REGISTERS = 65536
_SM_SHARED_BYTES = 228 * 1024
# What a thread needs besides accumulators: addresses, the softmax's rows, the weights on their way.
_LEAST_OTHER_REGISTERS = 32
# The compiler keeps to this by itself.
_MOST_REGISTERS = 255
# Blocks of fewer warps are small enough for several to fit as they are.
_LEAST_CAPPED_WARPS = 4


def forward_candidates(problem: Problem, device: Device) -> tuple[ForwardConfig, ...]:
    """Forward configs."""
    tiles = (
        ForwardConfig(block_q=owned, block_k=walked, num_warps=warps, num_stages=stages)
        for owned, walked, warps, stages in grid(
            device, problem.q_len, problem.kv_len, owned_sizes(256), walked_sizes(problem, 256), 5
        )
    )
    return nearest_first(forward_heuristic(problem, device), with_caps(problem, device, tiles))


def dq_candidates(problem: Problem, device: Device) -> tuple[DqConfig, ...]:
    """Configs of the dq launch."""
    tiles = (
        DqConfig(block_q=owned, block_k=walked, num_warps=warps, num_stages=stages)
        for owned, walked, warps, stages in grid(
            device, problem.q_len, problem.kv_len, owned_sizes(128), walked_sizes(problem, 128), 4
        )
    )
    return nearest_first(backward_heuristic(problem, device).dq, with_caps(problem, device, tiles))


def dkv_candidates(problem: Problem, device: Device) -> tuple[DkvConfig, ...]:
    """Configs of the dk/dv launch."""
    tiles = (
        DkvConfig(block_q=walked, block_k=owned, num_warps=warps, num_stages=stages)
        for owned, walked, warps, stages in grid(
            device, problem.kv_len, problem.q_len, owned_sizes(128), walked_sizes(problem, 128), 4
        )
    )
    return nearest_first(backward_heuristic(problem, device).dkv, with_caps(problem, device, tiles))


def owned_sizes(most: int) -> tuple[int, ...]:
    """Blocks of the side that a program owns."""
    return tuple(size for size in (16, 32, 64, 128, 256) if size <= most)


def walked_sizes(problem: Problem, most: int) -> tuple[int, ...]:
    """Blocks of the side that it walks."""
    # Wide heads walk in short steps: at H256 a tile of 128 keys and its values are 128 KB a stage.
    wide = max(problem.head_dim, problem.v_head_dim) > 128
    return tuple(s for s in (16, 32, 64, 128, 256) if s <= (most // 2 if wide else most))


def grid(
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


def with_caps[T: Tile](
    problem: Problem,
    device: Device,
    tiles: Iterable[T],
    needed: Callable[[Problem, T], int] = accumulators,
) -> Iterator[T]:
    """Each tile; and where one more block would fit a multiprocessor with fewer registers a thread, that too.

    ``needed`` counts the registers a thread that no cap may go below.

    On an H200 the best forward at H64 is such a one: 128x128 with 8 warps of 128 registers, two blocks side by side.
    """
    for tile in tiles:
        yield tile
        blocks = _SM_REGISTERS // (32 * tile.num_warps * _MOST_REGISTERS) + 1
        cap = _SM_REGISTERS // (32 * tile.num_warps * blocks) // 8 * 8
        room = _SM_SHARED_BYTES // max(1, shared_bytes(problem, device, tile))
        worthwhile = tile.num_warps >= _LEAST_CAPPED_WARPS and 1 < blocks <= room
        if worthwhile and needed(problem, tile) + _LEAST_OTHER_REGISTERS <= cap:
            yield dataclasses.replace(tile, max_registers=cap)


def nearest_first[T: Tile](
    start: T, tiles: Iterable[T], knobs: Sequence[str] = ("block_q", "block_k", "num_warps")
) -> tuple[T, ...]:
    """``start``, then the others by how many doublings of ``knobs`` away they are; all distinct."""

    def distance(tile: T) -> tuple:
        steps = [abs(math.log2(getattr(tile, name) / getattr(start, name))) for name in knobs]
        capped = 0 if tile.max_registers is None else 1
        far = sum(steps) + abs(tile.num_stages - start.num_stages) + capped
        # The text last: it tells apart what differs in a knob of its own kernel.
        return (far, *(getattr(tile, name) for name in knobs), tile.num_stages, capped, str(tile))

    others = sorted(set(tiles) - {start}, key=distance)
    return (start, *others)
