"""Candidate tiles that several Triton kernels of flash attention share."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from attn_tune.kernels.flash_attention._triton.limits import accumulators, shared_bytes
from attn_tune.kernels.lang.triton.tiles import Tile
from attn_tune.ops.flash_attention.problem import Problem
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
