"""The configs worth trying, nearest to the untuned choice first."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator

from attn_tune.kernels.flash_attention import costs
from attn_tune.kernels.flash_attention._triton.limits import fits, shared_bytes_at_most
from attn_tune.kernels.flash_attention.costs import bandwidth, parts_us, units, visible_keys, width
from attn_tune.kernels.flash_attention.triton_split.config import MOST_SPLITS, ForwardConfig
from attn_tune.kernels.flash_attention.triton_split.limits import packed_rows
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import shared_limit
from attn_tune.kernels.lang.triton.tiles import block_cap, cut_tile, fitted, nearest_first
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

# Two blocks on every multiprocessor hide one's waiting behind the other's; more than eight only add parts to combine.
_WANTED_BLOCKS, _MOST_BLOCKS = 2, 8
# Keys of one part at least: with fewer, a program starts and ends its pipeline for a tile or two. Where nothing is
# known of the device so many that the second launch, some microseconds, is small beside what it saves.
_FEWEST_KEYS, _FEWEST_KEYS_UNTUNED = 64, 512
_LAUNCH = "triton_split/fwd"
_KNOBS = ("block_q", "block_k", "num_warps", "num_splits")
# Rows of a tile up to which reading keys and values takes all the time.
_FEW_ROWS = 32
# The cost of a forward of few rows on an H200 (Triton 3.6 and 3.9; ``_few_rows_us``): a launch, the first tile of a
# program and each further kilobyte of keys and values, in microseconds; the second launch, and what each split adds.
_LAUNCH_US, _TILE_US, _KILOBYTE_US = 3.0, 0.55, 0.0107
_COMBINE_US, _SPLIT_US = 0.9, 0.035


def heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """The untuned config: a tile for all rows that share keys, up to 64, and splits that keep the device busy."""
    return untuned(problem, device)[1]


def untuned(problem: Problem, device: Device) -> tuple[float, ForwardConfig]:
    """Microseconds that a forward should take, infinite without figures, and its config."""
    rows = min(32 if problem.dtype == "float32" else 64, block_cap(packed_rows(problem)))
    if rows <= _FEW_ROWS and problem.dtype != "float32":
        return _few_rows(problem, device, rows)
    if not costs.known(device):
        return math.inf, _many_rows(problem, device, rows)
    us, config = _least(problem, device)
    return us, config if costs.modelled(problem) else _many_rows(problem, device, rows)


def _least(problem: Problem, device: Device) -> tuple[float, ForwardConfig]:
    """The tile and the number of splits that should take least, of many rows on a device with figures."""
    us, (knobs, splits) = min(
        (costs.launch_us(costs.Launch(_LAUNCH, knobs, splits), problem, device), (knobs, splits))
        for knobs in costs.choices(_LAUNCH, problem)
        for splits in _all_splits(problem)
    )
    config = ForwardConfig(
        block_q=min(knobs[0], block_cap(packed_rows(problem))),
        block_k=min(knobs[1], block_cap(problem.kv_len)),
        num_warps=knobs[2],
        num_stages=knobs[3],
        num_splits=splits,
    )
    return us + costs.call_us(_LAUNCH, problem, device), _fitted(problem, device, config)


def _few_rows(problem: Problem, device: Device, rows: int) -> tuple[float, ForwardConfig]:
    """The tile of keys and the number of splits that should take least, larger tiles and fewer splits where equal."""
    largest = 64 if _is_wide(problem) else 128
    options = []
    for block_k, splits in itertools.product((largest, largest // 2), _all_splits(problem)):
        tile = ForwardConfig(
            block_q=rows,
            block_k=min(block_k, block_cap(-(-visible_keys(problem) // splits))),
            num_warps=4,
            num_stages=3,
            num_splits=splits,
        )
        if _walked(problem, tile) < tile.num_stages:
            # A stage that stays empty takes the room of another program.
            tile = dataclasses.replace(tile, num_stages=2)
        tile = _fitted(problem, device, tile)
        options.append((_few_rows_us(problem, device, tile), tile))
    return min(options, key=lambda option: option[0])


def _few_rows_us(problem: Problem, device: Device, tile: ForwardConfig) -> float:
    """Microseconds that a forward bound by the reading of keys and values should take.

    A wave of programs takes the time of its tiles, or that of the memory if that is more; an unfilled last wave wastes
    what it leaves idle, except that a lone wave needs not every multiprocessor to reach the memory's bandwidth. Within
    12 % of the times of 130 configs of eight decoding shapes where these are near the best.
    """
    keys, heads = visible_keys(problem), problem.batch * problem.num_kv_heads
    bytes_per_key = 2 * (problem.head_dim + problem.v_head_dim)
    programs = _programs(problem, block_q=tile.block_q) * tile.num_splits
    held = shared_bytes_at_most(problem, device, tile)
    waves = programs / (units(device) * max(1, shared_limit(device) // held))
    tiles = _walked(problem, tile)
    tile_us = _TILE_US + _KILOBYTE_US * tile.block_k * bytes_per_key / 1024
    memory_us = heads * keys * bytes_per_key / bandwidth(device)
    if problem.has_lengths:
        # The longest sequence decides how long a program takes, their mean what is read.
        memory_us /= 2
    if waves > 1:
        memory_us *= math.ceil(waves) / waves
    us = _LAUNCH_US + max(math.ceil(waves) * tiles * tile_us, memory_us)
    if tile.num_splits > 1:
        us += _COMBINE_US + _SPLIT_US * tile.num_splits + parts_us(problem, tile.num_splits, device)
    return us


def _walked(problem: Problem, tile: ForwardConfig) -> int:
    """Tiles of keys that a program walks at most."""
    return -(-visible_keys(problem) // (tile.num_splits * tile.block_k))


def _all_splits(problem: Problem) -> list[int]:
    """Every number of splits that leaves each part enough keys."""
    most = _splits(visible_keys(problem) // _FEWEST_KEYS)
    return [1 << power for power in range(most.bit_length())]


def _many_rows(problem: Problem, device: Device, rows: int) -> ForwardConfig:
    """Two blocks a multiprocessor.

    At 64x64 and 4 warps a thread holds 32 logits and, at H128, 64 floats of the output: 167 registers on sm_90. At H256
    the tile of keys is halved, for shared memory: three stages of 64 keys and their values are 192 KB.
    """
    block_k = 32 if _is_wide(problem) or problem.dtype == "float32" else 64
    tile = ForwardConfig(
        block_q=rows,
        block_k=min(block_k, block_cap(problem.kv_len)),
        num_warps=4,
        num_stages=3,
        num_splits=1,
    )
    tile = _fitted(problem, device, tile)
    return dataclasses.replace(tile, num_splits=_splits(int(_wanted_splits(problem, device, tile))))


def adapt(tuned: Problem, problem: Problem, device: Device, config: ForwardConfig) -> ForwardConfig:
    """The config of ``tuned`` for ``problem``: its tile cut to the lengths, and its splits against the untuned ones."""
    tile = cut_tile(config, packed_rows(problem), problem.kv_len)
    more = _wanted_splits(problem, device, tile) / _wanted_splits(tuned, device, config)
    nearest = 2 ** round(math.log2(max(1, config.num_splits * more)))
    most = visible_keys(problem) // _FEWEST_KEYS
    return dataclasses.replace(tile, num_splits=_splits(min(nearest, most)))


def _fitted(problem: Problem, device: Device, tile: ForwardConfig) -> ForwardConfig:
    """The largest tile from ``tile`` down that fits the shared memory."""
    return fitted(tile, functools.partial(fits, problem, device))


def candidates(problem: Problem, device: Device) -> tuple[ForwardConfig, ...]:
    """Tiles for all rows that share keys or half of them, and splits that give multiprocessors work."""
    start = heuristic(problem, device)
    return nearest_first(start, _tiles(problem, device), _KNOBS)


def _tiles(problem: Problem, device: Device) -> Iterator[ForwardConfig]:
    cap = min(128, block_cap(packed_rows(problem)))
    wide = width(problem) > 128
    for block_q, block_k in itertools.product(
        sorted({cap, max(16, cap // 2)}), (16, 32, 64) if wide else (32, 64, 128)
    ):
        if block_k > block_cap(problem.kv_len):
            continue
        for warps, stages in itertools.product((2, 4) if block_q <= 32 else (4, 8), (2, 3, 4)):
            tile = ForwardConfig(block_q=block_q, block_k=block_k, num_warps=warps, num_stages=stages, num_splits=1)
            for splits in _worthwhile_splits(problem, device, tile):
                yield dataclasses.replace(tile, num_splits=splits)


def _worthwhile_splits(problem: Problem, device: Device, tile: ForwardConfig) -> Iterator[int]:
    """The most that leave each part enough keys, and fewer as long as every multiprocessor gets a block."""
    programs = _programs(problem, block_q=tile.block_q)
    most = _splits(visible_keys(problem) // _FEWEST_KEYS)
    splits = 1
    while splits <= most:
        busy = programs * splits >= units(device) or splits == most
        if busy and (splits == 1 or programs * splits <= _MOST_BLOCKS * units(device)):
            yield splits
        splits *= 2


def _is_wide(problem: Problem) -> bool:
    return padded(width(problem)) > 128


def _wanted_splits(problem: Problem, device: Device, tile: ForwardConfig) -> float:
    """Splits that give multiprocessors their blocks, and parts enough keys."""
    blocks = _WANTED_BLOCKS * units(device) / _programs(problem, block_q=tile.block_q)
    return max(1, min(blocks, visible_keys(problem) / _FEWEST_KEYS_UNTUNED))


def _splits(number: int) -> int:
    """The power of two at or below ``number`` that a config may have."""
    return min(MOST_SPLITS, 1 << (max(1, number).bit_length() - 1))


def _programs(problem: Problem, *, block_q: int) -> int:
    """Programs of one split."""
    return problem.batch * problem.num_kv_heads * -(-packed_rows(problem) // block_q)
