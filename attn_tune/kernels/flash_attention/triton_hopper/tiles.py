"""Device code: which tiles a program owns, which keys a tile sees, and how the groups of warps are told."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from attn_tune.kernels.flash_attention.triton_hopper.config import WARPS
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


class Facts(NamedTuple):
    """What the groups of warps are told of a tile: its number or -1, its tiles of keys, and how many keys count.

    There is at least one tile of keys, which is masked where none is visible. By their positions all rows see all of
    the tiles in ``[full_begin, full_end)``; ``begin <= full_begin`` and ``full_end <= end``. All keys of the tiles in
    ``[same_begin, same_end)`` share a segment with all rows; told only where there are segments.
    """

    tile: gl.tensor
    begin: gl.tensor
    full_begin: gl.tensor
    full_end: gl.tensor
    end: gl.tensor
    length: gl.tensor
    same_begin: gl.tensor
    same_end: gl.tensor


class Stored(NamedTuple):
    """What is loaded of a tile, as it is: its segments' row of ``triton/ranges.py`` and how many keys count."""

    tile: gl.tensor
    begin: gl.tensor
    same_begin: gl.tensor
    same_end: gl.tensor
    end: gl.tensor
    same: gl.tensor
    length: gl.tensor


@gluon.jit
def look_up(tile, ranges, lengths, plan: gl.constexpr, static: gl.constexpr):
    """What is stored of a tile; what is absent is 0 and not looked at."""
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
    return Stored(tile, begin, same_begin, same_end, end, same, length)


@gluon.jit
def facts_of(stored, plan: gl.constexpr, static: gl.constexpr):
    """What ``look_up`` found, narrowed to what causal, window and lengths leave."""
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
    return Facts(
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
def _one(warps):
    """The layout of one number."""
    return gl.BlockedLayout([1], [32], [warps], [0])


@gluon.constexpr_function
def told(static):
    """How many of the facts are told of a tile: those of segments are the last two."""
    return len(Facts._fields) - 2 * (not static.has_ranges)


@gluon.jit
def tell(facts, turn, room, bars, static: gl.constexpr):
    """From the warps that copy to the others: the facts of the tile of ``turn``."""
    slot = turn % _TILE_SLOTS
    mbarrier.wait(bars.tile_empty.index(slot), (turn // _TILE_SLOTS & 1) ^ 1)
    for i in gl.static_range(told(static)):
        room.facts.index(slot * told(static) + i).store(gl.full([1], facts[i], gl.int32, _one(1)))
    mbarrier.arrive(bars.tile_full.index(slot))


@gluon.jit
def hear(turn, room, bars, static: gl.constexpr):
    """The facts of the tile of ``turn``."""
    slot = turn % _TILE_SLOTS
    mbarrier.wait(bars.tile_full.index(slot), turn // _TILE_SLOTS & 1)
    tile = _number(room.facts.index(slot * told(static)))
    begin = _number(room.facts.index(slot * told(static) + 1))
    full_begin = _number(room.facts.index(slot * told(static) + 2))
    full_end = _number(room.facts.index(slot * told(static) + 3))
    end = _number(room.facts.index(slot * told(static) + 4))
    length = _number(room.facts.index(slot * told(static) + 5))
    same_begin = begin
    same_end = end
    if static.has_ranges:
        same_begin = _number(room.facts.index(slot * told(static) + 6))
        same_end = _number(room.facts.index(slot * told(static) + 7))
    mbarrier.arrive(bars.tile_empty.index(slot))
    return Facts(tile, begin, full_begin, full_end, end, length, same_begin, same_end)


@gluon.jit
def _number(place):
    return gl.max(place.load(_one(_WARPS)), 0)
