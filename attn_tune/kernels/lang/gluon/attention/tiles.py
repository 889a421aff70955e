"""Device code of tiles: the order in which a program takes them, the keys that each sees, and the exchange of both."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from attn_tune.kernels.lang.gluon.attention.config import WARPS
from attn_tune.kernels.lang.gluon.device import load_scalar, store_scalar
from attn_tune.kernels.lang.triton.device.ranges import WIDTH

# Tiles that a program has taken and not begun.
TILE_SLOTS = 2
_TILE_SLOTS = gl.constexpr(TILE_SLOTS)
_WARPS = gl.constexpr(WARPS)


@gluon.jit
def scheduled_tile(schedule, turn, plan: gl.constexpr):
    """The number of a program's tile from the table that ``schedule.py`` makes, or -1."""
    return gl.load(schedule + gl.program_id(0) * plan.schedule_width + turn)


@gluon.jit
def tile_at(place, plan: gl.constexpr, static: gl.constexpr):
    """The number of the tile at a place of the queue, or -1: sections of heads, of each the last rows first."""
    heads: gl.constexpr = plan.heads_per_section
    rest = place % (heads * static.q_blocks)
    head = place // (heads * static.q_blocks) * heads + rest % heads
    block = static.q_blocks - 1 - rest // heads
    return gl.where(place < plan.num_tiles, head * static.q_blocks + block, -1)


@gluon.jit
def place_of(tile, static: gl.constexpr):
    """The ``(block, batch, head)`` of a tile; of none, those of the first."""
    tile = gl.maximum(tile, 0)
    head = tile // static.q_blocks
    return tile % static.q_blocks, head // static.num_q_heads, head % static.num_q_heads


class TileInfo(NamedTuple):
    """The facts of a tile that the copying warp publishes: its number or -1, its tiles of keys, its count of keys.

    There is at least one tile of keys, which is masked where none is visible. By their positions all rows see all of
    the tiles in ``[full_begin, full_end)``; ``begin <= full_begin`` and ``full_end <= end``. All keys of the tiles in
    ``[same_begin, same_end)`` share a segment with all rows; published only where there are segments.
    """

    tile: gl.tensor
    begin: gl.tensor
    full_begin: gl.tensor
    full_end: gl.tensor
    end: gl.tensor
    length: gl.tensor
    same_begin: gl.tensor
    same_end: gl.tensor


class StoredInfo(NamedTuple):
    """The stored facts of a tile as loaded: its segments' row of ``ranges.py`` and its count of keys."""

    tile: gl.tensor
    begin: gl.tensor
    same_begin: gl.tensor
    same_end: gl.tensor
    end: gl.tensor
    same: gl.tensor
    length: gl.tensor


@gluon.jit
def load_tile_info(tile, ranges, lengths, plan: gl.constexpr, static: gl.constexpr):
    """Loads ``StoredInfo`` of a tile; what is absent is 0 and not used."""
    block, batch, _ = place_of(tile, static)
    length = tile * 0 + static.kv_len
    begin = tile * 0
    same_begin = begin
    same_end = begin
    end = begin
    same = begin
    if plan.has_lengths:
        length = gl.load(lengths + batch)
    if static.has_ranges:
        row = ranges + (batch * static.q_blocks + block) * WIDTH
        begin = gl.load(row)
        same_begin = gl.load(row + 1)
        same_end = gl.load(row + 2)
        end = gl.load(row + 3)
        same = gl.load(row + 4)
    return StoredInfo(tile, begin, same_begin, same_end, end, same, length)


@gluon.jit
def tile_info_of(stored, plan: gl.constexpr, static: gl.constexpr):
    """Narrows ``StoredInfo`` to the tiles of keys that causal, window and lengths leave."""
    block_k: gl.constexpr = static.block_k
    block, _, _ = place_of(stored.tile, static)
    first = block * static.block_q + static.offset
    last = gl.minimum((block + 1) * static.block_q, static.q_len) - 1 + static.offset
    begin = block * 0
    full_begin = begin
    end = begin + static.kv_blocks
    full_end = begin + static.kv_len // block_k
    if static.skips_right:
        seen = gl.minimum(gl.maximum(last + static.right + 1, 1), static.kv_len)
        end = (seen + block_k - 1) // block_k
        full_end = gl.minimum(full_end, gl.maximum(first + static.right + 1, 0) // block_k)
    if static.skips_left:
        begin = gl.minimum(gl.maximum(first - static.left, 0) // block_k, end - 1)
        full_begin = (gl.maximum(last - static.left, 0) + block_k - 1) // block_k
    same_begin = begin
    same_end = end
    if static.has_ranges:
        is_run = (stored.same > 0) & (stored.same_end - stored.same_begin == stored.same)
        same_begin = gl.where(is_run, stored.same_begin, end)
        same_end = gl.where(is_run, stored.same_end, end)
        end = gl.maximum(gl.minimum(end, stored.end), 1)
        begin = gl.minimum(gl.maximum(begin, stored.begin), end - 1)
    if plan.has_lengths:
        end = gl.maximum(gl.minimum(end, (stored.length + block_k - 1) // block_k), 1)
        begin = gl.minimum(begin, end - 1)
        full_end = gl.minimum(full_end, stored.length // block_k)
    return TileInfo(
        stored.tile,
        begin,
        gl.maximum(full_begin, begin),
        gl.minimum(full_end, end),
        end,
        stored.length,
        same_begin,
        same_end,
    )


@gluon.constexpr_function
def tile_info_size(static):
    """The number of published fields of ``TileInfo``; the last two are those of segments."""
    return len(TileInfo._fields) - 2 * (not static.has_ranges)


@gluon.jit
def publish_tile_info(info, turn, buffers, barriers, static: gl.constexpr):
    """Publishes the facts of the tile of ``turn``, from the copying warp to both groups that multiply."""
    slot = turn % _TILE_SLOTS
    mbarrier.wait(barriers.tile_empty.index(slot), (turn // _TILE_SLOTS & 1) ^ 1)
    for i in gl.static_range(tile_info_size(static)):
        store_scalar(buffers.info.index(slot * tile_info_size(static) + i), info[i])
    mbarrier.arrive(barriers.tile_full.index(slot))


@gluon.jit
def receive_tile_info(turn, buffers, barriers, static: gl.constexpr):
    """Waits for the facts of the tile of ``turn`` and reads them."""
    slot = turn % _TILE_SLOTS
    mbarrier.wait(barriers.tile_full.index(slot), turn // _TILE_SLOTS & 1)
    tile = load_scalar(buffers.info.index(slot * tile_info_size(static)), _WARPS)
    begin = load_scalar(buffers.info.index(slot * tile_info_size(static) + 1), _WARPS)
    full_begin = load_scalar(buffers.info.index(slot * tile_info_size(static) + 2), _WARPS)
    full_end = load_scalar(buffers.info.index(slot * tile_info_size(static) + 3), _WARPS)
    end = load_scalar(buffers.info.index(slot * tile_info_size(static) + 4), _WARPS)
    length = load_scalar(buffers.info.index(slot * tile_info_size(static) + 5), _WARPS)
    same_begin = begin
    same_end = end
    if static.has_ranges:
        same_begin = load_scalar(buffers.info.index(slot * tile_info_size(static) + 6), _WARPS)
        same_end = load_scalar(buffers.info.index(slot * tile_info_size(static) + 7), _WARPS)
    mbarrier.arrive(barriers.tile_empty.index(slot))
    return TileInfo(tile, begin, full_begin, full_end, end, length, same_begin, same_end)
