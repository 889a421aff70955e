"""Device code of the groups of warps that multiply, and of the stretches of keys that a program walks.

The blocks of keys of all sequences are one line, of which each program has a piece (``_triton.schedule``, whose rules
these are); a stretch is what a piece has of one sequence.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from attn_tune.kernels.lang.gluon.latents import KEYS, PANEL, ROWS, WARPS
from attn_tune.kernels.lang.gluon.latents.device import (
    LN2,
    LOG2E,
    add_others,
    await_logits,
    end_tiles,
    rounded_rows,
    start_tiles,
    sum_totals,
)
from attn_tune.kernels.lang.gluon.latents.slots import stage_of
from attn_tune.kernels.lang.gluon.names import synchronize, viewed

_ROWS = gl.constexpr(ROWS)
_KEYS = gl.constexpr(KEYS)
_WARPS = gl.constexpr(WARPS)
_PANEL = gl.constexpr(PANEL)


class Stretch(NamedTuple):
    """The blocks of keys of one sequence that a program walks.

    Attributes:
      length: tokens of the sequence.
      lowest: the first key that a query of it sees.
      block: the first block.
      count: how many; 0 of a sequence that shows nothing.
      end: the key behind the last one of these blocks, and of the sequence.
      is_whole: they are all of the sequence.
    """

    length: gl.tensor
    lowest: gl.tensor
    block: gl.tensor
    count: gl.tensor
    end: gl.tensor
    is_whole: gl.tensor


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _bounds(length, static: gl.constexpr):
    """The length within what the cache holds, the first key that is seen, and the blocks that hold seen keys."""
    length = gl.minimum(gl.maximum(length, 0), static.capacity)
    lowest = length * 0
    if static.left is not None:
        lowest = gl.maximum(length - static.q_len - static.left, 0)
    return length, lowest, (length + _KEYS - 1) // _KEYS - lowest // _KEYS


@gluon.constexpr_function
def _vector_layout(size):
    """Every warp holds the whole vector."""
    return gl.BlockedLayout([max(1, size // 32)], [32], [_WARPS.value], [0])


@gluon.jit
def first_work(kv_lens, static: gl.constexpr):
    """The piece of a program: where it begins and ends on the line, its first sequence, and the first block of that."""
    index = gl.arange(0, static.block_b, _vector_layout(static.block_b))
    _, _, blocks = _bounds(gl.load(kv_lens + index, mask=index < static.batch, other=0), static)
    total = gl.sum(blocks, 0)
    equal = gl.maximum((total + static.num_programs - 1) // static.num_programs, static.least_blocks)
    position = gl.program_id(0) // static.tiles * equal
    done = gl.associative_scan(blocks, 0, _add) <= position
    sequence = gl.sum(done.to(gl.int32), 0)
    offset = position - gl.sum(gl.where(done, blocks, 0), 0)
    return position, gl.minimum(position + equal, total), sequence, offset


@gluon.jit
def next_stretch(position, end, sequence, offset, kv_lens, static: gl.constexpr):
    """The rest of a piece in one sequence, from block ``offset`` of it on."""
    length, lowest, own = _bounds(gl.load(kv_lens + sequence), static)
    count = gl.minimum(own - offset, end - position)
    block = lowest // _KEYS + offset
    return Stretch(length, lowest, block, count, gl.minimum(length, (block + count) * _KEYS), count == own)


@gluon.jit
def attend(
    GROUP: gl.constexpr,
    work,
    kv_lens,
    sinks,
    outputs,
    buffers,
    barriers,
    queries,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Computes one half of the output's columns of each stretch; ``queries`` are the barriers of theirs."""
    q_full, q_empty = queries
    position, end, sequence, offset = work
    first_row = gl.program_id(0) % static.tiles * _ROWS
    row = first_row + gl.arange(0, _ROWS, gl.SliceLayout(1, layouts.logits))
    query = row // static.num_q_heads
    if sinks is not None:
        sink = gl.load(sinks + row % static.num_q_heads, mask=row < static.rows, other=float("-inf")) * LOG2E
    tile = 0
    turn = 0
    while position < end:
        stretch = next_stretch(position, end, sequence, offset, kv_lens, static)
        if stretch.count > 0:
            shift = gl.full([_ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, layouts.logits))
            total = gl.full([_ROWS], 0.0, gl.float32, gl.SliceLayout(1, layouts.logits))
            if sinks is not None:
                # The first part counts the sink; one of minus infinity adds nothing.
                shift = gl.where(offset == 0, sink, shift)
                if GROUP == 0:
                    total = gl.where(shift == float("-inf"), 0.0, 1.0)
            acc = gl.full([_ROWS, plan.half], 0.0, gl.float32, layouts.out)
            at = stretch.length - static.q_len + query
            mbarrier.wait(q_full.index(0), turn & 1)
            # Tiles are counted in pairs, of which the last one may lie behind the stretch.
            key = stretch.block * _KEYS
            pairs = (stretch.count + 1) // 2
            if GROUP == 0:
                acc, shift, total = _step(
                    0, True, acc, shift, total, stretch, key, at, tile, buffers, barriers, static, plan, layouts
                )
                tile += 1
                key += _KEYS
            for _ in range(GROUP ^ 1, pairs):
                tile += 1
                key += _KEYS
                acc, shift, total = _step(
                    GROUP, False, acc, shift, total, stretch, key, at, tile, buffers, barriers, static, plan, layouts
                )
                tile += 1
                key += _KEYS
            if GROUP == 0:
                acc, shift, total = add_others(
                    0, _hide_values, (stretch, key), acc, shift, total, tile, buffers, barriers, plan, layouts
                )
                tile += 1
            total = sum_totals(GROUP, total, turn, buffers, barriers, layouts)
            turn += 1
            state = (acc, shift, total)
            _store(GROUP, state, stretch, sequence, offset, first_row, row, outputs, buffers, static, plan, layouts)
            # The output was written where the next copies of queries write.
            fence_async_shared()
            mbarrier.arrive(q_empty.index(0))
        position += stretch.count
        sequence += 1
        offset = 0


@gluon.jit
def _step(
    GROUP: gl.constexpr,
    IS_FIRST: gl.constexpr,
    acc,
    shift,
    total,
    stretch,
    key,
    at,
    tile,
    buffers,
    barriers,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """An own tile from ``key`` on and, before it, one of the other group: accumulator, shift, own denominator."""
    LATE_SCALE: gl.constexpr = static.dot_scale if static.soft_cap is None else static.soft_cap
    walked = (stretch, key)
    acc, shift, total, x = start_tiles(
        GROUP, IS_FIRST, _hide_values, walked, acc, shift, total, tile, buffers, barriers, plan, layouts
    )
    x = _masked(await_logits(IS_FIRST, x, plan), key, at, stretch, static, layouts)
    return end_tiles(
        GROUP, IS_FIRST, _hide_values, walked, acc, x, shift, total, tile, LATE_SCALE, buffers, barriers, plan, layouts
    )


@gluon.jit
def _masked(x, first, at, stretch, static: gl.constexpr, layouts: gl.constexpr):
    """The logits, capped, and minus infinity where a row does not see a key; not scaled yet."""
    if static.soft_cap is not None:
        # tanh by exp2: exact limits at both ends. tanh.approx has 11 bits only.
        x = 1.0 - 2.0 / (1.0 + gl.exp2(x * (2.0 * LOG2E * static.dot_scale)))
    is_all_seen = first + _KEYS <= gl.minimum(stretch.length - static.q_len + 1, stretch.end)
    if static.left is not None:
        is_all_seen = is_all_seen & (first >= stretch.length - 1 - static.left)
    if not is_all_seen:
        key = first + gl.arange(0, _KEYS, gl.SliceLayout(0, layouts.logits))
        is_seen = (key[None, :] <= at[:, None]) & (key < stretch.end)[None, :]
        if static.left is not None:
            is_seen = is_seen & (key[None, :] >= at[:, None] - static.left)
        x = gl.where(is_seen, x, float("-inf"))
    return x


@gluon.jit
def _hide_values(GROUP: gl.constexpr, BACK: gl.constexpr, walked, tile, buffers, plan: gl.constexpr):
    """Sets to zero those values of a group's columns that no query sees: a weight of zero does not hide a NaN.

    ``walked`` are the stretch and the first key ``BACK`` tiles behind ``tile``.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [_WARPS, 1], [1, 0])
    PANELS: gl.constexpr = plan.half // _PANEL
    stretch, key = walked
    first = key - BACK * _KEYS
    if (first < stretch.lowest) | (first + _KEYS > stretch.end):
        stage, _ = stage_of(tile, plan)
        row = first + gl.arange(0, _KEYS, gl.SliceLayout(1, LAYOUT))
        is_seen = (row >= stretch.lowest) & (row < stretch.end)
        panel_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_KEYS, _PANEL], buffers.k.dtype)
        panels = viewed(buffers.k, [plan.stages * 2 * PANELS, _KEYS, _PANEL], panel_layout)
        for i in gl.static_range(PANELS):
            panel = panels.index((stage * 2 + GROUP) * PANELS + i)
            values = panel.load(LAYOUT)
            panel.store(gl.where(is_seen[:, None], values, 0.0))
        fence_async_shared()
        synchronize()


@gluon.jit
def _store(
    GROUP: gl.constexpr,
    state,
    stretch,
    sequence,
    offset,
    first_row,
    row,
    outputs,
    buffers,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Stores the columns of a group: of whole sequences the output, of others a part of it in float32."""
    acc, shift, total = state
    out, lse, part_out, part_lse = outputs
    seen = total > 0
    some = gl.where(seen, total, 1.0)
    log_sum = gl.where(seen, shift + gl.log2(some), float("-inf"))
    factor = gl.where(seen, 1.0 / some, 0.0)
    if stretch.is_whole:
        base = sequence.to(gl.int64) * static.rows
        if GROUP == 0:
            gl.store(lse + base + row, log_sum * LN2, mask=row < static.rows)
        rounded = rounded_rows(GROUP, acc, factor, buffers, plan, layouts)
        _store_columns(GROUP, out, rounded, base, first_row, static, plan)
    else:
        # A sequence's first part is the last of a program's piece.
        part = 2 * (gl.program_id(0) // static.tiles) + (offset == 0).to(gl.int32)
        base = (part.to(gl.int64) * static.tiles + gl.program_id(0) % static.tiles) * _ROWS - first_row
        if GROUP == 0:
            gl.store(part_lse + base + row, log_sum, mask=row < static.rows)
        values = acc * gl.convert_layout(factor, gl.SliceLayout(1, layouts.out))[:, None]
        _store_columns(GROUP, part_out, values, base, first_row, static, plan)


@gluon.jit
def _store_columns(GROUP: gl.constexpr, memory, values, base, first_row, static: gl.constexpr, plan: gl.constexpr):
    """Stores a group's half of the rows that exist to an array in which ``base`` is the row of row 0."""
    LAYOUT: gl.constexpr = values.type.layout
    row = first_row + gl.arange(0, _ROWS, gl.SliceLayout(1, LAYOUT))
    column = GROUP * plan.half + gl.arange(0, plan.half, gl.SliceLayout(0, LAYOUT))
    inside = (row < static.rows)[:, None] & (column < static.v_head_dim)[None, :]
    gl.store(memory + (base + row)[:, None] * static.v_head_dim + column[None, :], values, mask=inside)
