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
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attn_tune.kernels.lang.gluon.names import synchronize
from attn_tune.kernels.paged_decode.triton_hopper.config import BLOCK, KEYS, ROWS, WARPS
from attn_tune.kernels.paged_decode.triton_hopper.plan import PANEL

LOG2E, LN2 = gl.constexpr(1.4426950408889634), gl.constexpr(0.6931471805599453)
_ROWS = gl.constexpr(ROWS)
_KEYS = gl.constexpr(KEYS)
_BLOCK = gl.constexpr(BLOCK)
_WARPS = gl.constexpr(WARPS)
_PANEL = gl.constexpr(PANEL)


class Buffers(NamedTuple):
    """The slots in shared memory, and other views of the same bytes.

    Attributes:
      q, q_copies, q_rest: queries ``[1, 64, width]``, their panels, and the columns behind ``[1, 64, 64]`` or None.
      k, k_copies: keys ``[slots, 32, width]``, and what one copy writes of them.
      halves: what a group multiplies with weights, ``[slots * 2, 32, half]``.
      panels: panels of keys, ``[slots * panels, 32, 64]``.
      k_rest, k_rest_copies: the columns behind, ``[slots, 32, 64]``, and what one copy writes of them; or None.
      weights: the weights that each group passes to the other, ``[2, 64, 32]``.
      maxima, totals: what it passes of each row, ``[2, 64]``.
    """

    q: gl.shared_memory_descriptor
    q_copies: gl.shared_memory_descriptor
    q_rest: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    k_copies: gl.shared_memory_descriptor
    halves: gl.shared_memory_descriptor
    panels: gl.shared_memory_descriptor
    k_rest: gl.shared_memory_descriptor
    k_rest_copies: gl.shared_memory_descriptor
    weights: gl.shared_memory_descriptor
    maxima: gl.shared_memory_descriptor
    totals: gl.shared_memory_descriptor


class Barriers(NamedTuple):
    """One barrier a slot: ``full`` when its copies have come, ``empty`` when both groups are done with it.

    The last three have one for each group: what it passes to the other is there.
    """

    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor
    k_empty: gl.shared_memory_descriptor
    maxima_full: gl.shared_memory_descriptor
    weights_full: gl.shared_memory_descriptor
    totals_full: gl.shared_memory_descriptor


class Stretch(NamedTuple):
    """The blocks of keys of one sequence that a program walks.

    Attributes:
      length: tokens of the sequence.
      lowest: the first key that a query of it sees.
      block: the first block.
      count: how many; 0 of a sequence that shows nothing.
      is_whole: they are all of the sequence.
    """

    length: gl.tensor
    lowest: gl.tensor
    block: gl.tensor
    count: gl.tensor
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
    return Stretch(length, lowest, lowest // _KEYS + offset, count, count == own)


@gluon.jit
def stage_of(tile, plan: gl.constexpr):
    """The stage of a tile of keys, and the phase of its barriers. Without a sign these are a mask and a shift."""
    tile = tile.to(gl.uint32)
    return (tile % plan.stages).to(gl.int32), (tile // plan.stages & 1).to(gl.int32)


@gluon.jit
def attend(
    GROUP: gl.constexpr,
    work,
    kv_lens,
    sinks,
    outputs,
    buffers,
    barriers,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Computes one half of the output's columns of each stretch."""
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
            maximum = gl.full([_ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, layouts.logits))
            total = gl.full([_ROWS], 0.0, gl.float32, gl.SliceLayout(1, layouts.logits))
            if sinks is not None:
                # The first part counts the sink; one of minus infinity adds nothing.
                maximum = gl.where(offset == 0, sink, maximum)
                if GROUP == 0:
                    total = gl.where(maximum == float("-inf"), 0.0, 1.0)
            acc = gl.full([_ROWS, plan.half], 0.0, gl.float32, layouts.out)
            at = stretch.length - static.q_len + query
            mbarrier.wait(barriers.q_full.index(0), turn & 1)
            for j in range(stretch.count):
                acc, maximum, total = _step(
                    GROUP, acc, maximum, total, stretch, j, at, tile, buffers, barriers, static, plan, layouts
                )
                tile += 1
            mbarrier.arrive(barriers.q_empty.index(0))
            buffers.totals.index(GROUP).store(total)
            synchronize()
            mbarrier.arrive(barriers.totals_full.index(GROUP))
            mbarrier.wait(barriers.totals_full.index(1 - GROUP), turn & 1)
            total += buffers.totals.index(1 - GROUP).load(gl.SliceLayout(1, layouts.logits))
            turn += 1
            state = (acc, maximum, total)
            _store(GROUP, state, stretch, sequence, offset, first_row, row, outputs, static, plan, layouts)
        position += stretch.count
        sequence += 1
        offset = 0


@gluon.jit
def _step(
    GROUP: gl.constexpr,
    acc,
    maximum,
    total,
    stretch,
    j,
    at,
    tile,
    buffers,
    barriers,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """One tile of keys: accumulator [64, half], maximum [64], and the denominator of the keys of the own logits."""
    LATE_SCALE: gl.constexpr = static.dot_scale if static.soft_cap is None else static.soft_cap
    stage, phase = stage_of(tile, plan)
    first = (stretch.block + j) * _KEYS
    slot = stage * 2 + GROUP
    other = stage * 2 + 1 - GROUP
    mbarrier.wait(barriers.k_full.index(slot), phase)
    x = _logits(slot, buffers, plan, layouts)
    x = warpgroup_mma_wait(0, deps=[x])
    x = _masked(x, first + GROUP * _BLOCK, at, stretch, static, plan, layouts)
    # Scaled behind the maximum, and in the one instruction that subtracts it.
    highest = gl.max(x, 1) * LATE_SCALE
    buffers.maxima.index(GROUP).store(highest)
    synchronize()
    mbarrier.arrive(barriers.maxima_full.index(GROUP))
    mbarrier.wait(barriers.maxima_full.index(1 - GROUP), tile & 1)
    highest = gl.maximum(highest, buffers.maxima.index(1 - GROUP).load(gl.SliceLayout(1, layouts.logits)))
    new_maximum = gl.maximum(maximum, highest)
    # A row may have seen nothing yet.
    shift = gl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = gl.exp2(x * LATE_SCALE - shift[:, None])
    correction = gl.exp2(maximum - shift)
    total = total * correction + gl.sum(weights, 1)
    weights = weights.to(buffers.k.dtype)
    buffers.weights.index(GROUP).store(weights)
    fence_async_shared()
    synchronize()
    mbarrier.arrive(barriers.weights_full.index(GROUP))
    operand = gl.convert_layout(weights, layouts.weights)
    mbarrier.wait(barriers.k_full.index(other), phase)
    if (first < stretch.lowest) | (first + _KEYS > stretch.length):
        _hide_values(GROUP, stage, first, stretch, buffers, plan)
    acc = acc * gl.convert_layout(correction, gl.SliceLayout(1, layouts.out))[:, None]
    acc = warpgroup_mma(operand, buffers.halves.index(slot * 2 + GROUP), acc, is_async=True)
    mbarrier.wait(barriers.weights_full.index(1 - GROUP), tile & 1)
    acc = warpgroup_mma(buffers.weights.index(1 - GROUP), buffers.halves.index(other * 2 + GROUP), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(barriers.k_empty.index(stage))
    return acc, new_maximum, total


@gluon.jit
def _logits(slot, buffers, plan: gl.constexpr, layouts: gl.constexpr):
    """Starts the product of queries and the keys of a slot."""
    zeros = gl.full([_ROWS, _BLOCK], 0.0, gl.float32, layouts.logits)
    x = warpgroup_mma(buffers.q.index(0), buffers.k.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
    if plan.rest > 0:
        x = warpgroup_mma(buffers.q_rest.index(0), buffers.k_rest.index(slot).permute((1, 0)), x, is_async=True)
    return x


@gluon.jit
def _masked(x, first, at, stretch, static: gl.constexpr, plan: gl.constexpr, layouts: gl.constexpr):
    """The logits, capped, and minus infinity where a row does not see a key; not scaled yet."""
    if static.soft_cap is not None:
        # tanh by exp2: exact limits at both ends. tanh.approx has 11 bits only.
        x = 1.0 - 2.0 / (1.0 + gl.exp2(x * (2.0 * LOG2E * static.dot_scale)))
    is_all_seen = first + _BLOCK <= stretch.length - static.q_len + 1
    if static.left is not None:
        is_all_seen = is_all_seen & (first >= stretch.length - 1 - static.left)
    if not is_all_seen:
        key = first + gl.arange(0, _BLOCK, gl.SliceLayout(0, layouts.logits))
        is_seen = (key[None, :] <= at[:, None]) & (key < stretch.length)[None, :]
        if static.left is not None:
            is_seen = is_seen & (key[None, :] >= at[:, None] - static.left)
        x = gl.where(is_seen, x, float("-inf"))
    return x


@gluon.jit
def _hide_values(GROUP: gl.constexpr, stage, first, stretch, buffers, plan: gl.constexpr):
    """Sets to zero those values of a group's columns that no query sees: a weight of zero does not hide a NaN.

    The other group may be computing logits of these keys: of keys that are seen nothing changes, others are masked.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [_WARPS, 1], [1, 0])
    PANELS: gl.constexpr = plan.panels // 2
    for part in gl.static_range(2):
        key = first + part * _BLOCK + gl.arange(0, _BLOCK, gl.SliceLayout(1, LAYOUT))
        is_seen = (key >= stretch.lowest) & (key < stretch.length)
        for i in gl.static_range(PANELS):
            panel = buffers.panels.index((stage * 2 + part) * plan.panels + GROUP * PANELS + i)
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
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Stores the columns of a group: of whole sequences the output, of others a part of it in float32."""
    acc, maximum, total = state
    out, lse, part_out, part_lse = outputs
    seen = total > 0
    some = gl.where(seen, total, 1.0)
    log_sum = gl.where(seen, maximum + gl.log2(some), float("-inf"))
    factor = gl.convert_layout(gl.where(seen, 1.0 / some, 0.0), gl.SliceLayout(1, layouts.out))
    values = acc * factor[:, None]
    own_row = first_row + gl.arange(0, _ROWS, gl.SliceLayout(1, layouts.out))
    column = GROUP * plan.half + gl.arange(0, plan.half, gl.SliceLayout(0, layouts.out))
    inside = (own_row < static.rows)[:, None] & (column < static.v_head_dim)[None, :]
    if stretch.is_whole:
        base = sequence.to(gl.int64) * static.rows
        if GROUP == 0:
            gl.store(lse + base + row, log_sum * LN2, mask=row < static.rows)
        places = (base + own_row)[:, None] * static.v_head_dim + column[None, :]
        gl.store(out + places, values.to(out.dtype.element_ty), mask=inside)
    else:
        # A sequence's first part is the last of a program's piece.
        part = 2 * (gl.program_id(0) // static.tiles) + (offset == 0).to(gl.int32)
        base = (part.to(gl.int64) * static.tiles + gl.program_id(0) % static.tiles) * _ROWS - first_row
        if GROUP == 0:
            gl.store(part_lse + base + row, log_sum, mask=row < static.rows)
        places = (base + own_row)[:, None] * static.v_head_dim + column[None, :]
        gl.store(part_out + places, values, mask=inside)
