"""Device code of tiles: which queries a tile has and which keys they see, found from the lengths by the copying warp.

Tiles are numbered so that the sequence of a number is found by halving, without a sum over all sequences: those of
sequence ``i`` begin at ``cu_q_lens[i] // queries + i``. Some numbers are left over: no queries belong to them.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from attn_tune.kernels.lang.gluon.device import load_scalar, next_place, store_scalar
from attn_tune.kernels.ragged_paged.triton_hopper.config import WARPS

# Tiles whose facts are published and not yet read by all.
TILE_SLOTS, FACTS = 2, 8
_TILE_SLOTS = gl.constexpr(TILE_SLOTS)
_FACTS = gl.constexpr(FACTS)
_WARPS = gl.constexpr(WARPS)
# Heads of a number without queries, and behind the last number.
_EMPTY = gl.constexpr(-2)
_NONE = gl.constexpr(-1)


class TileInfo(NamedTuple):
    """The facts of a tile.

    Attributes:
      head: its key head; -1 if there is none.
      sequence: its sequence.
      first, end: its first query, and the end of the sequence's queries.
      length: tokens of the sequence.
      lowest: the first token that a query of the sequence sees.
      begin, stop: the tiles of keys that it walks, at least one.
    """

    head: gl.tensor
    sequence: gl.tensor
    first: gl.tensor
    end: gl.tensor
    length: gl.tensor
    lowest: gl.tensor
    begin: gl.tensor
    stop: gl.tensor


@gluon.jit
def count_decoded(decodes):
    """The first sequences that another launch decodes."""
    count = gl.program_id(0) * 0
    if decodes is not None:
        count = gl.load(decodes)
    return count


@gluon.jit
def queue_of(cu_q_lens, decodes, plan: gl.constexpr):
    """The first sequence that has tiles here, the first number, and how many numbers there are."""
    decoded = count_decoded(decodes)
    first = gl.load(cu_q_lens + decoded) // plan.queries + decoded
    last = gl.load(cu_q_lens + plan.batch) // plan.queries + plan.batch
    return decoded, first, gl.maximum(last - first, 0)


@gluon.jit
def tile_at(place, cu_q_lens, kv_lens, queue, plan: gl.constexpr):
    """The tile at a place of the queue: sections of key heads, of each the last numbers first."""
    decoded, first_number, count = queue
    heads: gl.constexpr = plan.heads_per_section
    per_section = gl.maximum(count * heads, 1)
    rest = place % per_section
    head = place // per_section * heads + rest % heads
    number = first_number + count - 1 - rest // heads
    low = decoded
    high = decoded * 0 + plan.batch
    for _ in range(plan.searches):
        middle = (low + high) // 2
        is_before = gl.load(cu_q_lens + middle) // plan.queries + middle <= number
        low = gl.where(is_before, middle, low)
        high = gl.where(is_before, high, middle)
    sequence = gl.minimum(low, plan.batch - 1)
    begin_q = gl.load(cu_q_lens + sequence)
    end = gl.load(cu_q_lens + sequence + 1)
    length = gl.minimum(gl.maximum(gl.load(kv_lens + sequence), 0), plan.capacity)
    first = begin_q + (number - begin_q // plan.queries - sequence) * plan.queries
    # The last query of a sequence stands at its last token; of a call that is not causal all do.
    offset = length - end
    seen = length
    if plan.causal:
        seen = gl.minimum(first + plan.queries, end) + offset
    stop = gl.maximum((seen + plan.block_k - 1) // plan.block_k, 1)
    lowest = length * 0
    begin = length * 0
    if plan.left is not None:
        lowest = gl.maximum(begin_q + offset - plan.left, 0)
        begin = gl.minimum(gl.maximum(first + offset - plan.left, 0) // plan.block_k, stop - 1)
    head = gl.where(first < end, head, _EMPTY)
    head = gl.where(place < count * plan.num_kv_heads, head, _NONE)
    return TileInfo(head, sequence, first, end, length, lowest, begin, stop)


@gluon.jit
def next_tile(place, counter, cu_q_lens, kv_lens, queue, plan: gl.constexpr):
    """The tile at ``place``, or the next one of the queue where that has no queries."""
    info = tile_at(place, cu_q_lens, kv_lens, queue, plan)
    while info.head == _EMPTY:
        info = tile_at(plan.num_programs + next_place(counter), cu_q_lens, kv_lens, queue, plan)
    return info


@gluon.jit
def publish_tile(info, turn, buffers, barriers):
    """Publishes the facts of the tile of ``turn``, from the copying warp to all groups that multiply."""
    slot = turn % _TILE_SLOTS
    mbarrier.wait(barriers.tile_empty.index(slot), (turn // _TILE_SLOTS & 1) ^ 1)
    for i in gl.static_range(_FACTS):
        store_scalar(buffers.info.index(slot * _FACTS + i), info[i])
    mbarrier.arrive(barriers.tile_full.index(slot))


@gluon.jit
def receive_tile(turn, buffers, barriers):
    """Waits for the facts of the tile of ``turn`` and reads them."""
    slot = turn % _TILE_SLOTS
    mbarrier.wait(barriers.tile_full.index(slot), turn // _TILE_SLOTS & 1)
    head = load_scalar(buffers.info.index(slot * _FACTS), _WARPS)
    sequence = load_scalar(buffers.info.index(slot * _FACTS + 1), _WARPS)
    first = load_scalar(buffers.info.index(slot * _FACTS + 2), _WARPS)
    end = load_scalar(buffers.info.index(slot * _FACTS + 3), _WARPS)
    length = load_scalar(buffers.info.index(slot * _FACTS + 4), _WARPS)
    lowest = load_scalar(buffers.info.index(slot * _FACTS + 5), _WARPS)
    begin = load_scalar(buffers.info.index(slot * _FACTS + 6), _WARPS)
    stop = load_scalar(buffers.info.index(slot * _FACTS + 7), _WARPS)
    mbarrier.arrive(barriers.tile_empty.index(slot))
    return TileInfo(head, sequence, first, end, length, lowest, begin, stop)
