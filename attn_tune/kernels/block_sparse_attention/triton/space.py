"""The configs worth trying, nearest to the untuned choice first, and that choice."""

import dataclasses
import functools
from collections.abc import Iterator

from attn_tune.kernels.block_sparse_attention.triton.config import (
    BackwardConfig,
    DkvConfig,
    DqConfig,
    ForwardConfig,
)
from attn_tune.kernels.block_sparse_attention.triton.limits import fits
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.tiles import (
    Tile,
    block_cap,
    cut_tile,
    fitted,
    grid,
    halved,
    nearest_first,
    owned_sizes,
    walked_sizes,
)
from attn_tune.ops.block_sparse_attention.problem import Problem
from attn_tune.schema.device import Device

# (owned, walked, num_warps, num_stages) of forward, dq and dk/dv, by head dim up to: dense attention's on sm_90. The
# forward at 128 took 1953 us of documents of 1x32k on an H100, 128 rows and 8 warps 2101, 128 rows and keys 2211.
_UNTUNED = {
    64: ((64, 64, 4, 3), (128, 64, 8, 3), (64, 64, 4, 3)),
    128: ((64, 64, 4, 3), (128, 32, 8, 3), (64, 64, 4, 2)),
    256: ((128, 64, 8, 2), (128, 32, 8, 3), (32, 64, 4, 2)),
}
_MOST_WALKED, _MOST_STAGES = 128, 4


def forward_heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """The forward's untuned config."""
    return _untuned(problem, device, ForwardConfig, 0)


def backward_heuristic(problem: Problem, device: Device) -> BackwardConfig:
    """The backward's untuned config."""
    return BackwardConfig(dq=_untuned(problem, device, DqConfig, 1), dkv=_untuned(problem, device, DkvConfig, 2))


def forward_candidates(problem: Problem, device: Device) -> tuple[ForwardConfig, ...]:
    """Forward configs."""
    return nearest_first(forward_heuristic(problem, device), _tiles(problem, device, ForwardConfig))


def dq_candidates(problem: Problem, device: Device) -> tuple[DqConfig, ...]:
    """Configs of the dq launch."""
    return nearest_first(backward_heuristic(problem, device).dq, _tiles(problem, device, DqConfig))


def dkv_candidates(problem: Problem, device: Device) -> tuple[DkvConfig, ...]:
    """Configs of the dk/dv launch."""
    return nearest_first(backward_heuristic(problem, device).dkv, _tiles(problem, device, DkvConfig))


def adapt_forward(tuned: Problem, problem: Problem, device: Device, config: ForwardConfig) -> ForwardConfig:
    """The tile, cut to the lengths."""
    return cut_tile(config, problem.q_len, problem.kv_len)


def adapt_backward(tuned: Problem, problem: Problem, device: Device, config: BackwardConfig) -> BackwardConfig:
    """Both tiles, cut to the lengths."""
    lengths = problem.q_len, problem.kv_len
    return BackwardConfig(dq=cut_tile(config.dq, *lengths), dkv=cut_tile(config.dkv, *lengths))


def _made[T: Tile](cls: type[T], owned: int, walked: int, warps: int, stages: int, **more: bool) -> T:
    rows, keys = (walked, owned) if cls.owns_keys else (owned, walked)
    return cls(block_q=rows, block_k=keys, num_warps=warps, num_stages=stages, **more)


def _untuned[T: Tile](problem: Problem, device: Device, cls: type[T], column: int) -> T:
    width = max(padded(problem.head_dim), padded(problem.v_head_dim))
    owned, walked, warps, stages = next(_UNTUNED[bound][column] for bound in sorted(_UNTUNED) if width <= bound)
    # A tile that holds several blocks computes those that are not listed too.
    blocks = (problem.mask_block_k, problem.mask_block_q)
    owned_block, walked_block = blocks if cls.owns_keys else blocks[::-1]
    tile = cut_tile(
        _made(cls, max(16, min(owned, owned_block)), max(16, min(walked, walked_block)), warps, stages),
        problem.q_len,
        problem.kv_len,
    )
    if problem.dtype == "float32":
        # Three passes of tf32 hold three tiles where one pass holds one.
        tile = halved(tile)
    while tile.owned < 8 * tile.num_warps and tile.num_warps > 1:
        tile = dataclasses.replace(tile, num_warps=tile.num_warps // 2)
    return fitted(tile, functools.partial(fits, problem, device))


def _tiles[T: Tile](problem: Problem, device: Device, cls: type[T]) -> Iterator[T]:
    """Tiles of the mask's blocks or parts of them, both orders of programs; of small blocks those of several too."""
    lengths = (problem.q_len, problem.kv_len)
    owned_length, walked_length = lengths[::-1] if cls.owns_keys else lengths
    width = max(problem.head_dim, problem.v_head_dim)
    most_q, most_k = (min(256, max(64, size)) for size in (problem.mask_block_q, problem.mask_block_k))
    sizes = owned_sizes(128), walked_sizes(width, _MOST_WALKED)
    for owned, walked, warps, stages in grid(device, owned_length, walked_length, *sizes, _MOST_STAGES):
        for first in (True, False):
            tile = _made(cls, owned, walked, warps, stages, longest_first=first)
            if tile.block_q <= min(most_q, block_cap(problem.q_len)) and tile.block_k <= min(
                most_k, block_cap(problem.kv_len)
            ):
                yield tile
