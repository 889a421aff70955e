"""The configs worth trying, nearest to the untuned choice first."""

import dataclasses
import itertools
import math
from collections.abc import Iterator

from attn_tune.kernels.flash_attention._triton import host
from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.flash_attention.triton_split.config import MOST_SPLITS, ForwardConfig
from attn_tune.kernels.flash_attention.triton_split.limits import infeasible, packed_rows, units
from attn_tune.schema.device import Device

# Two blocks on every multiprocessor hide one's waiting behind the other's; more than eight only add parts to combine.
_WANTED_BLOCKS, _MOST_BLOCKS = 2, 8
# Keys of one part at least: with fewer, a program starts and ends its pipeline for a tile or two. In an untuned choice
# so many that the second launch, some microseconds, is small beside what it saves.
_FEWEST_KEYS, _FEWEST_KEYS_UNTUNED = 128, 512
_KNOBS = ("block_q", "block_k", "num_warps", "num_splits")


def heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """The untuned config: a tile for all rows that share keys, up to 64, and two blocks a multiprocessor.

    At 64x64 and 4 warps a thread holds 32 logits and, at H128, 64 floats of the output: 167 registers on sm_90. At H256
    the tile of keys is halved, for shared memory: three stages of 64 keys and their values are 192 KB.
    """
    wide = max(host.padded(problem.head_dim), host.padded(problem.v_head_dim)) > 128
    block_k = 32 if wide or problem.dtype == "float32" else 64
    tile = ForwardConfig(
        block_q=min(32 if problem.dtype == "float32" else 64, host.block_cap(packed_rows(problem))),
        block_k=min(block_k, host.block_cap(problem.kv_len)),
        num_warps=4,
        num_stages=3,
        num_splits=1,
    )
    while not _fits(problem, device, tile) and _smaller(tile) != tile:
        tile = _smaller(tile)
    return dataclasses.replace(tile, num_splits=_splits(int(_wanted_splits(problem, device, tile))))


def adapt(tuned: Problem, problem: Problem, device: Device, config: ForwardConfig) -> ForwardConfig:
    """The config of ``tuned`` for ``problem``: its tile cut to the lengths, and its splits against the untuned ones."""
    tile = host.cut_tile(config, packed_rows(problem), problem.kv_len)
    more = _wanted_splits(problem, device, tile) / _wanted_splits(tuned, device, config)
    nearest = 2 ** round(math.log2(max(1, config.num_splits * more)))
    most = visible_keys(problem) // _FEWEST_KEYS
    return dataclasses.replace(tile, num_splits=_splits(min(nearest, most)))


def candidates(problem: Problem, device: Device) -> tuple[ForwardConfig, ...]:
    """Tiles for all rows that share keys or half of them, and splits that give multiprocessors work."""
    start = heuristic(problem, device)
    return host.nearest_first(start, _tiles(problem, device), _KNOBS)


def visible_keys(problem: Problem) -> int:
    """Keys that some row may see, as far as causal and window go by their number."""
    left, _ = problem.bounds
    if left is None or problem.has_positions:
        return problem.kv_len
    return min(problem.kv_len, left + problem.q_len)


def _tiles(problem: Problem, device: Device) -> Iterator[ForwardConfig]:
    cap = min(128, host.block_cap(packed_rows(problem)))
    wide = max(problem.head_dim, problem.v_head_dim) > 128
    for block_q, block_k in itertools.product(
        sorted({cap, max(16, cap // 2)}), (16, 32, 64) if wide else (32, 64, 128)
    ):
        if block_k > host.block_cap(problem.kv_len):
            continue
        for warps, stages in itertools.product((2, 4) if block_q <= 32 else (4, 8), (2, 3, 4)):
            tile = ForwardConfig(
                block_q=block_q, block_k=block_k, num_warps=warps, num_stages=stages, num_splits=1
            )
            for splits in _worthwhile_splits(problem, device, tile):
                yield dataclasses.replace(tile, num_splits=splits)


def _worthwhile_splits(problem: Problem, device: Device, tile: ForwardConfig) -> Iterator[int]:
    """The most that leave each part enough keys, and fewer as long as every multiprocessor gets a block."""
    programs, most = _programs(problem, tile), _splits(visible_keys(problem) // _FEWEST_KEYS)
    splits = 1
    while splits <= most:
        busy = programs * splits >= units(device) or splits == most
        if busy and (splits == 1 or programs * splits <= _MOST_BLOCKS * units(device)):
            yield splits
        splits *= 2


def _wanted_splits(problem: Problem, device: Device, tile: ForwardConfig) -> float:
    """Splits that give multiprocessors their blocks, and parts enough keys."""
    blocks = _WANTED_BLOCKS * units(device) / _programs(problem, tile)
    return max(1, min(blocks, visible_keys(problem) / _FEWEST_KEYS_UNTUNED))


def _splits(number: int) -> int:
    """The power of two at or below ``number`` that a config may have."""
    return min(MOST_SPLITS, 1 << (max(1, number).bit_length() - 1))


def _programs(problem: Problem, tile: ForwardConfig) -> int:
    """Programs of one split."""
    return problem.batch * problem.num_kv_heads * -(-packed_rows(problem) // tile.block_q)


def _fits(problem: Problem, device: Device, tile: ForwardConfig) -> bool:
    enough = host.shared_bytes_at_most(problem, device, tile) <= host.shared_limit(device)
    return enough and infeasible(problem, device, tile) is None


def _smaller(tile: ForwardConfig) -> ForwardConfig:
    """One step down: fewer stages, then fewer keys, then fewer rows."""
    if tile.num_stages > 2:
        return dataclasses.replace(tile, num_stages=tile.num_stages - 1)
    name = "block_k" if tile.block_k > 16 else "block_q"
    return dataclasses.replace(tile, **{name: max(16, getattr(tile, name) // 2)})
