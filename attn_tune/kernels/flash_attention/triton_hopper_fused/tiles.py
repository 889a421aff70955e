"""Device code of tiles: the keys that a program owns and the rows that it walks."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from attn_tune.kernels.flash_attention.triton_hopper_fused.config import WARPS
from attn_tune.kernels.flash_attention.triton_hopper_fused.plan import PLACE_SLOTS
from attn_tune.kernels.lang.gluon.device import load_scalar, store_scalar
from attn_tune.kernels.lang.triton.device.ranges import WIDTH

_WARPS = gl.constexpr(WARPS)
_PLACE_SLOTS = gl.constexpr(PLACE_SLOTS)


class Bounds(NamedTuple):
    """The rows that segments leave a tile of keys, as in ``ranges.row_ranges``, and ``Walk.length``."""

    begin: gl.tensor
    same_begin: gl.tensor
    same_end: gl.tensor
    end: gl.tensor
    length: gl.tensor


class Walk(NamedTuple):
    """A tile of keys and the tiles of rows that a program walks for it, of each query head that shares the keys.

    All rows see all keys, as far as causal and window go, in the tiles ``[full_begin, full_end)``, and
    share their segment in ``[same_begin, same_end)``. ``length``: how many keys of the sequence count.
    """

    block: gl.tensor
    batch: gl.tensor
    kv_head: gl.tensor
    begin: gl.tensor
    full_begin: gl.tensor
    full_end: gl.tensor
    end: gl.tensor
    same_begin: gl.tensor
    same_end: gl.tensor
    length: gl.tensor


@gluon.jit
def load_bounds(place, ranges, lengths, plan: gl.constexpr, static: gl.constexpr):
    """The bounds of the tile of keys at a place of the queue; behind its end those of the last one, which no walk uses.

    Loaded by the copying warp alone, beside what the others multiply.
    """
    block, head = _owner_of(gl.minimum(place, plan.num_tiles - 1), static)
    batch = head // static.num_kv_heads
    begin = place * 0
    same_begin = begin
    same_end = begin
    end = begin
    length = begin
    if static.has_ranges:
        row = ranges + (batch * static.kv_blocks + block) * WIDTH
        begin = gl.load(row)
        same_begin = gl.load(row + 1)
        same_end = gl.load(row + 2)
        end = gl.load(row + 3)
        is_run = same_end - same_begin == gl.load(row + 4)
        same_end = gl.where(is_run, same_end, same_begin)
    if plan.has_lengths:
        length = gl.load(lengths + batch)
    return Bounds(begin, same_begin, same_end, end, length)


@gluon.jit
def publish_place(place, bounds, turn, buffers, barriers, plan: gl.constexpr, static: gl.constexpr):
    """Publishes the place of the tile of ``turn`` in the queue, from the copying warp to both groups that multiply."""
    slot = turn % _PLACE_SLOTS
    mbarrier.wait(barriers.place_empty.index(slot), (turn // _PLACE_SLOTS & 1) ^ 1)
    first = slot * plan.place_numbers
    store_scalar(buffers.place.index(first), place)
    if static.has_ranges:
        store_scalar(buffers.place.index(first + 1), bounds.begin)
        store_scalar(buffers.place.index(first + 2), bounds.same_begin)
        store_scalar(buffers.place.index(first + 3), bounds.same_end)
        store_scalar(buffers.place.index(first + 4), bounds.end)
    if plan.has_lengths:
        store_scalar(buffers.place.index(first + 5), bounds.length)
    mbarrier.arrive(barriers.place_full.index(slot))


@gluon.jit
def receive_place(turn, buffers, barriers, plan: gl.constexpr, static: gl.constexpr):
    """Waits for the place and the bounds of the tile of ``turn`` and reads them."""
    slot = turn % _PLACE_SLOTS
    mbarrier.wait(barriers.place_full.index(slot), turn // _PLACE_SLOTS & 1)
    first = slot * plan.place_numbers
    place = load_scalar(buffers.place.index(first), _WARPS)
    begin = place * 0
    same_begin = begin
    same_end = begin
    end = begin
    length = begin
    if static.has_ranges:
        begin = load_scalar(buffers.place.index(first + 1), _WARPS)
        same_begin = load_scalar(buffers.place.index(first + 2), _WARPS)
        same_end = load_scalar(buffers.place.index(first + 3), _WARPS)
        end = load_scalar(buffers.place.index(first + 4), _WARPS)
    if plan.has_lengths:
        length = load_scalar(buffers.place.index(first + 5), _WARPS)
    mbarrier.arrive(barriers.place_empty.index(slot))
    return place, Bounds(begin, same_begin, same_end, end, length)


@gluon.jit
def _owner_of(place, static: gl.constexpr):
    """``(block, head of all sequences)`` of the tile of keys at a place of the queue.

    The heads of a section are innermost, so that programs that run together read the same rows. Under a causal mask the
    first keys have the most rows; natural order is longest first.
    """
    PER_SECTION: gl.constexpr = static.heads_per_section * static.kv_blocks
    within = place % PER_SECTION
    block = within // static.heads_per_section
    return block, place // PER_SECTION * static.heads_per_section + within % static.heads_per_section


@gluon.jit
def walk_of(place, bounds, plan: gl.constexpr, static: gl.constexpr):
    """The walk of the tile of keys at a place of the queue."""
    block, head = _owner_of(place, static)
    batch = head // static.num_kv_heads
    kv_head = head % static.num_kv_heads

    first_key = block * static.block_k
    first = first_key - static.offset
    last = gl.minimum(first_key + static.block_k, static.kv_len) - 1 - static.offset
    begin = block * 0
    full_begin = begin
    # Rows beyond the end need no mask: their lse makes every weight 0.
    end = begin + static.q_blocks
    full_end = end
    if static.skips_right:
        begin = gl.maximum(first - static.right, 0) // static.block_q
        full_begin = (gl.maximum(last - static.right, 0) + static.block_q - 1) // static.block_q
    if static.skips_left:
        end = gl.minimum((gl.maximum(last + static.left + 1, 0) + static.block_q - 1) // static.block_q, end)
        full_end = gl.minimum(gl.maximum(first + static.left + 1, 0) // static.block_q, end)
    same_begin = begin
    same_end = end
    if static.has_ranges:
        same_begin = bounds.same_begin
        same_end = bounds.same_end
        begin = gl.maximum(begin, bounds.begin)
        end = gl.minimum(end, bounds.end)
    length = begin * 0 + static.kv_len
    if plan.has_lengths:
        length = bounds.length
        end = gl.where(first_key < length, end, 0)
    return Walk(
        block, batch, kv_head, begin, full_begin, full_end, gl.maximum(begin, end), same_begin, same_end, length
    )


@gluon.jit
def steps_of(walk, static: gl.constexpr):
    """Steps of a walk: tiles of rows of all query heads of its key head."""
    return (walk.end - walk.begin) * static.group_size


@gluon.jit
def place_of(step, walk, static: gl.constexpr):
    """``(tile of rows, query head)`` of one step: from the last rows back, all heads of the group at each.

    Under a causal mask all keys see the last rows: programs that run together start with the same ones, and find them,
    and their sums, in the L2 cache. Head after head from their own first rows, 8 heads a group took twice the time.
    """
    head = walk.kv_head * static.group_size + step % static.group_size
    return walk.end - 1 - step // static.group_size, head


@gluon.jit
def slot_of(count, SLOTS: gl.constexpr):
    """The slot of a program's step, and the phase of its barriers. Without a sign these are a mask and a shift."""
    count = count.to(gl.uint32)
    return (count % SLOTS).to(gl.int32), (count // SLOTS & 1).to(gl.int32)
