"""Device code of the groups of warps that multiply."""

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
from attn_tune.kernels.sparse_mla.triton_hopper.config import BLOCK, KEYS, ROWS

LOG2E, LN2 = gl.constexpr(1.4426950408889634), gl.constexpr(0.6931471805599453)
_ROWS = gl.constexpr(ROWS)
_KEYS = gl.constexpr(KEYS)
_BLOCK = gl.constexpr(BLOCK)


class Buffers(NamedTuple):
    """The slots in shared memory, and another view of the same bytes.

    Attributes:
      q, q_rest: queries ``[1, 64, width]``, and the columns behind ``[1, 64, 64]`` or None.
      k, k_rest: keys ``[slots, 32, width]``, and the columns behind ``[slots, 32, 64]`` or None.
      halves: what a group multiplies with weights, ``[slots * 2, 32, half]``.
      weights: the weights that each group passes to the other, ``[2, 64, 32]``.
      maxima, totals: what it passes of each row, ``[2, 64]``.
    """

    q: gl.shared_memory_descriptor
    q_rest: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    k_rest: gl.shared_memory_descriptor
    halves: gl.shared_memory_descriptor
    weights: gl.shared_memory_descriptor
    maxima: gl.shared_memory_descriptor
    totals: gl.shared_memory_descriptor


class Barriers(NamedTuple):
    """One barrier a slot or stage: ``full`` when its copies have come, ``empty`` when both groups are done with it.

    The last three have one for each group: what it passes to the other is there.
    """

    k_full: gl.shared_memory_descriptor
    k_empty: gl.shared_memory_descriptor
    maxima_full: gl.shared_memory_descriptor
    weights_full: gl.shared_memory_descriptor
    totals_full: gl.shared_memory_descriptor


@gluon.jit
def first_index(plan: gl.constexpr):
    """The query of a program, the first tile of its indices, and how many tiles there are."""
    part = gl.program_id(0) // plan.tiles % plan.splits
    query = (gl.program_id(0) // (plan.tiles * plan.splits)).to(gl.int64)
    first = part * plan.share
    count = gl.minimum(plan.share, (plan.selected + _KEYS - 1) // _KEYS - first)
    return query, first, gl.maximum(count, 0)


@gluon.jit
def stage_of(tile, plan: gl.constexpr):
    """The stage of a tile of keys, and the phase of its barriers. Without a sign these are a mask and a shift."""
    tile = tile.to(gl.uint32)
    return (tile % plan.stages).to(gl.int32), (tile // plan.stages & 1).to(gl.int32)


@gluon.jit
def attend(GROUP: gl.constexpr, indices, sinks, out, lse, buffers, barriers, plan: gl.constexpr, layouts: gl.constexpr):
    """Computes one half of the output's columns of a tile of heads."""
    query, first, count = first_index(plan)
    head = gl.program_id(0) % plan.tiles * _ROWS + gl.arange(0, _ROWS, gl.SliceLayout(1, layouts.logits))
    maximum = gl.full([_ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, layouts.logits))
    total = gl.full([_ROWS], 0.0, gl.float32, gl.SliceLayout(1, layouts.logits))
    if sinks is not None:
        # The first part counts the sink; one of minus infinity adds nothing.
        sink = gl.load(sinks + head, mask=head < plan.heads, other=float("-inf")) * LOG2E
        maximum = gl.where(first == 0, sink, maximum)
        if GROUP == 0:
            total = gl.where(maximum == float("-inf"), 0.0, 1.0)
    acc = gl.full([_ROWS, plan.half], 0.0, gl.float32, layouts.out)
    place = first * _KEYS + GROUP * _BLOCK + gl.arange(0, _BLOCK, gl.SliceLayout(0, layouts.logits))
    indices += query * plan.selected
    named = gl.load(indices + place, mask=place < plan.selected, other=-1)
    for j in range(count):
        valid = (named >= 0) & (named < plan.kv_len)
        # Those of the next tile, which are there when it is.
        place += _KEYS
        named = gl.load(indices + place, mask=place < plan.selected, other=-1)
        acc, maximum, total = _step(GROUP, acc, maximum, total, valid, j, buffers, barriers, plan, layouts)
    buffers.totals.index(GROUP).store(total)
    synchronize()
    mbarrier.arrive(barriers.totals_full.index(GROUP))
    mbarrier.wait(barriers.totals_full.index(1 - GROUP), 0)
    total += buffers.totals.index(1 - GROUP).load(gl.SliceLayout(1, layouts.logits))
    _store(GROUP, acc, maximum, total, query, head, out, lse, plan, layouts)


@gluon.jit
def _step(
    GROUP: gl.constexpr,
    acc,
    maximum,
    total,
    valid,
    j,
    buffers,
    barriers,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """One tile of keys: accumulator [64, half], maximum [64], and the denominator of the keys of the own logits."""
    stage, phase = stage_of(j, plan)
    slot = stage * 2 + GROUP
    other = stage * 2 + 1 - GROUP
    mbarrier.wait(barriers.k_full.index(slot), phase)
    # What was copied by threads is read by the tensor cores.
    fence_async_shared()
    x = gl.full([_ROWS, _BLOCK], 0.0, gl.float32, layouts.logits)
    x = warpgroup_mma(buffers.q.index(0), buffers.k.index(slot).permute((1, 0)), x, use_acc=False, is_async=True)
    if plan.rest > 0:
        x = warpgroup_mma(buffers.q_rest.index(0), buffers.k_rest.index(slot).permute((1, 0)), x, is_async=True)
    x = warpgroup_mma_wait(0, deps=[x])
    x = gl.where(valid[None, :], x, float("-inf"))
    # Scaled behind the maximum, and in the one instruction that subtracts it.
    highest = gl.max(x, 1) * plan.scale
    buffers.maxima.index(GROUP).store(highest)
    synchronize()
    mbarrier.arrive(barriers.maxima_full.index(GROUP))
    mbarrier.wait(barriers.maxima_full.index(1 - GROUP), j & 1)
    highest = gl.maximum(highest, buffers.maxima.index(1 - GROUP).load(gl.SliceLayout(1, layouts.logits)))
    new_maximum = gl.maximum(maximum, highest)
    # A row may have seen nothing yet.
    shift = gl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = gl.exp2(x * plan.scale - shift[:, None])
    correction = gl.exp2(maximum - shift)
    total = total * correction + gl.sum(weights, 1)
    weights = weights.to(buffers.k.dtype)
    buffers.weights.index(GROUP).store(weights)
    fence_async_shared()
    synchronize()
    mbarrier.arrive(barriers.weights_full.index(GROUP))
    operand = gl.convert_layout(weights, layouts.weights)
    mbarrier.wait(barriers.k_full.index(other), phase)
    fence_async_shared()
    acc = acc * gl.convert_layout(correction, gl.SliceLayout(1, layouts.out))[:, None]
    acc = warpgroup_mma(operand, buffers.halves.index(slot * 2 + GROUP), acc, is_async=True)
    mbarrier.wait(barriers.weights_full.index(1 - GROUP), j & 1)
    acc = warpgroup_mma(buffers.weights.index(1 - GROUP), buffers.halves.index(other * 2 + GROUP), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(barriers.k_empty.index(stage))
    return acc, new_maximum, total


@gluon.jit
def _store(
    GROUP: gl.constexpr,
    acc,
    maximum,
    total,
    query,
    head,
    out,
    lse,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Stores the columns of a group: of the output, or of a part of it in float32."""
    seen = total > 0
    some = gl.where(seen, total, 1.0)
    part = (gl.program_id(0) // plan.tiles % plan.splits).to(gl.int64)
    base = (part * (gl.num_programs(0) // (plan.tiles * plan.splits)) + query) * plan.heads
    if GROUP == 0:
        log_sum = gl.where(seen, (maximum + gl.log2(some)) * LN2, float("-inf"))
        gl.store(lse + base + head, log_sum, mask=head < plan.heads)
    factor = gl.convert_layout(gl.where(seen, 1.0 / some, 0.0), gl.SliceLayout(1, layouts.out))
    row = gl.program_id(0) % plan.tiles * _ROWS + gl.arange(0, _ROWS, gl.SliceLayout(1, layouts.out))
    column = GROUP * plan.half + gl.arange(0, plan.half, gl.SliceLayout(0, layouts.out))
    inside = (row < plan.heads)[:, None] & (column < plan.v_head_dim)[None, :]
    places = (base + row)[:, None] * plan.v_head_dim + column[None, :]
    gl.store(out + places, (acc * factor[:, None]).to(out.dtype.element_ty), mask=inside)
