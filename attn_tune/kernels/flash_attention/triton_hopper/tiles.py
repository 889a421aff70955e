"""Device code: which tiles a program owns, and which keys a tile sees."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def own_tiles(schedule, plan: gl.constexpr):
    """``(how many, where their numbers are)`` of this program, from the table that ``schedule.py`` makes."""
    row = schedule + gl.program_id(0) * plan.schedule_width
    return gl.load(row), row + 1


@gluon.jit
def place_of(tile, static: gl.constexpr):
    """The ``(block, batch, head)`` of a tile."""
    head = tile // static.q_blocks
    return tile % static.q_blocks, head // static.num_q_heads, head % static.num_q_heads


@gluon.jit
def length_of(tile, lengths, plan: gl.constexpr, static: gl.constexpr):
    """How many keys count for the rows of a tile; asked for a tile ahead, so that nobody waits for it."""
    if plan.has_lengths:
        length = gl.load(lengths + tile // static.q_blocks // static.num_q_heads)
    else:
        length = tile * 0 + static.kv_len
    return length


@gluon.jit
def key_blocks(block, batch, ranges, length, plan: gl.constexpr, static: gl.constexpr):
    """``(begin, full_begin, full_end, end)`` in tiles of keys; at least one, which is masked where none is visible.

    All rows see all of the tiles in ``[full_begin, full_end)``; ``begin <= full_begin`` and ``full_end <= end``.
    ``ranges`` are those of the segments (``triton/ranges.py``), ``length`` is how many keys of the batch entry count.
    """
    block_k: gl.constexpr = static.block_k
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
    if static.has_ranges:
        row = ranges + (batch * static.q_blocks + block) * 4
        end = gl.maximum(gl.minimum(end, gl.load(row + 3)), 1)
        begin = gl.minimum(gl.maximum(begin, gl.load(row)), end - 1)
        full_begin = gl.maximum(full_begin, gl.load(row + 1))
        full_end = gl.minimum(full_end, gl.load(row + 2))
    if plan.has_lengths:
        end = gl.maximum(gl.minimum(end, (length + block_k - 1) // block_k), 1)
        begin = gl.minimum(begin, end - 1)
        full_end = gl.minimum(full_end, length // block_k)
    return begin, gl.maximum(full_begin, begin), gl.minimum(full_end, end), end
