"""Device code of the steps over tiles of keys that a group of warps makes for its rows.

FlashAttention-3's pipeline within a group of warps (arXiv 2407.08608, section 3.2): the logits of one tile of keys are
computed while the weights of the one before are multiplied with their values, and the softmax of the first runs beside
the second product.
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

from attn_tune.kernels.lang.gluon.device import approximate
from attn_tune.kernels.lang.gluon.names import synchronize
from attn_tune.kernels.ragged_paged.triton_hopper.config import ROWS, WARPS

LOG2E = gl.constexpr(1.4426950408889634)
_ROWS = gl.constexpr(ROWS)
_WARPS = gl.constexpr(WARPS)


class Rows(NamedTuple):
    """The rows of one group of warps.

    Attributes:
      position: of each row's query within its sequence, [64].
      sink: the sink of each row in base 2, [64]; the positions where there are none.
      whole_begin, whole_stop: the tiles of keys of which every row sees every key.
      factor: what multiplies each row of q.k, where the plan ``has_factors``, [64]; else the positions.
    """

    position: gl.tensor
    sink: gl.tensor
    whole_begin: gl.tensor
    whole_stop: gl.tensor
    factor: gl.tensor


@gluon.jit
def rows_of(CONSUMER: gl.constexpr, info, plan: gl.constexpr, layout: gl.constexpr):
    """The query, the head and whether there is one, of each row of a group of warps, [64]."""
    row = CONSUMER * _ROWS + gl.arange(0, _ROWS, layout)
    query = info.first + row // plan.group_rows
    within = row % plan.group_rows
    head = gl.maximum(info.head, 0) * plan.group_size + within
    return query, head, (query < info.end) & (within < plan.group_size)


@gluon.jit
def load_rows(CONSUMER: gl.constexpr, info, sinks, plan: gl.constexpr, layouts: gl.constexpr):
    """``Rows`` of a tile, in the layout of the logits."""
    query, head, is_row = rows_of(CONSUMER, info, plan, gl.SliceLayout(1, layouts.logits))
    last = info.length - 1
    first_position = last
    position = query * 0 + last
    if plan.causal:
        offset = info.length - info.end
        position = query + offset
        first_position = info.first + offset
    whole_begin = info.begin
    if plan.left is not None:
        last_position = first_position + plan.queries - 1
        whole_begin = (gl.maximum(last_position - plan.left, 0) + plan.block_k - 1) // plan.block_k
    sink = position
    if plan.has_sinks:
        sink = gl.load(sinks + head, mask=is_row, other=float("-inf")) * LOG2E
    return Rows(position, sink, whole_begin, gl.maximum(first_position + 1, 0) // plan.block_k, position)


@gluon.jit
def sum_in_threads(weights):
    """The sums [64, 4] of what each of the four threads of a row has of it; only the end of a tile adds them up."""
    columns: gl.constexpr = weights.shape[1]
    parts = weights.reshape([weights.shape[0], columns // 8, 4, 2])
    return gl.sum(gl.sum(parts, 3), 1)


@gluon.jit
def new_state(rows, plan: gl.constexpr, layouts: gl.constexpr):
    """Maximum [64] and denominator [64, 4], in parts, before any key was seen; a sink is the first logit seen."""
    row_layout: gl.constexpr = gl.SliceLayout(1, layouts.logits)
    maximum = gl.full([_ROWS], float("-inf"), gl.float32, row_layout)
    total = sum_in_threads(gl.full([_ROWS, plan.block_k], 0.0, gl.float32, layouts.logits))
    if plan.has_sinks:
        maximum = rows.sink
        share = gl.where(rows.sink == float("-inf"), 0.0, 0.25)
        total += gl.convert_layout(share, gl.SliceLayout(1, total.type.layout))[:, None]
    return maximum, total


@gluon.jit
def slot_of(count, plan: gl.constexpr):
    """The slot of a step, and the phase of its barriers. Without a sign these are a mask and a shift."""
    count = count.to(gl.uint32)
    return (count % plan.stages).to(gl.int32), (count // plan.stages & 1).to(gl.int32)


@gluon.jit
def _softmax(product, state, rows, block, plan: gl.constexpr, layouts: gl.constexpr):
    """One step of the online softmax (arXiv 2205.14135) in base 2, over tile ``block`` of the keys.

    Returns:
      The weights [64, block_k], the state with them, and what the sums before are multiplied with [64].
    """
    maximum, total = state
    x = product
    if plan.cap_scale is not None:
        # tanh by exp2, with exact limits at both ends: tanh.approx has 11 bits only.
        scale = rows.factor[:, None] if plan.has_factors else 2.0 * LOG2E * plan.cap_scale
        x = 1.0 - 2.0 * approximate("rcp.approx.ftz.f32", 1.0 + gl.exp2(x * scale))
    if (block < rows.whole_begin) | (block >= rows.whole_stop):
        column = block * plan.block_k + gl.arange(0, plan.block_k, gl.SliceLayout(0, layouts.logits))
        x = gl.where(column[None, :] <= rows.position[:, None], x, float("-inf"))
        if plan.left is not None:
            lowest = rows.position - plan.left
            x = gl.where(column[None, :] >= lowest[:, None], x, float("-inf"))
    if plan.has_factors and plan.cap_scale is None:
        late_scale = rows.factor
        late_scales = rows.factor[:, None]
    else:
        late_scale: gl.constexpr = plan.late_scale
        late_scales: gl.constexpr = plan.late_scale
    new_maximum = gl.maximum(maximum, gl.max(x, 1) * late_scale)
    # A row may have seen nothing yet.
    shift = gl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = gl.exp2(x * late_scales - shift[:, None])
    correction = gl.exp2(maximum - shift)
    parts = sum_in_threads(weights)
    factor = gl.convert_layout(correction, gl.SliceLayout(1, parts.type.layout))
    return weights, (new_maximum, total * factor[:, None] + parts), correction


@gluon.jit
def begin(
    CONSUMER: gl.constexpr,
    q_tile,
    count,
    info,
    rows,
    more,
    buffers,
    barriers,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """``(weights, state)`` of the last tile of keys, with no product of a tile before to run beside."""
    slot, phase = slot_of(count, plan)
    block = info.stop - 1
    mbarrier.wait(barriers.k_full.index(slot), phase, pred=more)
    _await_turn(CONSUMER, count, barriers, plan)
    product = _multiply_keys(q_tile, slot, buffers, plan, layouts)
    _pass_turn(CONSUMER, barriers, plan)
    product = warpgroup_mma_wait(0, deps=[product])
    product = _scale_product(product, slot, buffers, plan, layouts)
    mbarrier.arrive(barriers.k_empty.index(slot))
    weights, state, _ = _softmax(product, new_state(rows, plan, layouts), rows, block, plan, layouts)
    weights = _finish_weights(weights, slot, phase, block, info, more, True, buffers, barriers, plan, layouts)
    return weights, state


@gluon.jit
def walk(
    CONSUMER: gl.constexpr, carried, info, q_tile, rows, buffers, barriers, plan: gl.constexpr, layouts: gl.constexpr
):
    """The steps of all tiles of keys but the last, which was first, in falling order."""
    DIRTY: gl.constexpr = plan.left is not None
    for j in range(info.stop - 1 - info.begin):
        acc, weights, state, count = carried
        acc, weights, state, correction = step(
            CONSUMER, carried, info.stop - 2 - j, info, q_tile, rows, True, DIRTY, buffers, barriers, plan, layouts
        )
        acc = acc * gl.convert_layout(correction, gl.SliceLayout(1, layouts.out))[:, None]
        carried = (acc, weights, state, count + 1)
    return carried


@gluon.jit
def step(
    CONSUMER: gl.constexpr,
    carried,
    block,
    info,
    q_tile,
    rows,
    more,
    DIRTY: gl.constexpr,
    buffers,
    barriers,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """The logits of tile ``block`` of the keys, and the product that the step before left to do.

    Without ``more`` no keys come. ``DIRTY``: values of this tile may lie beside those that its sequence sees.

    Returns:
      What ``_softmax`` returns, after the sum of the values [64, H] of the steps before, not corrected.
    """
    acc, weights, state, count = carried
    slot, phase = slot_of(count, plan)
    last_slot, _ = slot_of(count - 1, plan)
    mbarrier.wait(barriers.k_full.index(slot), phase, pred=more)
    _await_turn(CONSUMER, count, barriers, plan)
    product = _multiply_keys(q_tile, slot, buffers, plan, layouts)
    acc = multiply_values(weights, last_slot, acc, buffers)
    _pass_turn(CONSUMER, barriers, plan)
    product = warpgroup_mma_wait(1, deps=[product])
    product = _scale_product(product, slot, buffers, plan, layouts)
    mbarrier.arrive(barriers.k_empty.index(slot))
    weights, state, correction = _softmax(product, state, rows, block, plan, layouts)
    # The values are wanted by the next step. They are waited for here because no instruction is moved over a loop:
    # without one ptxas has the exponentials come after the product that they can run beside.
    weights = _finish_weights(weights, slot, phase, block, info, more, DIRTY, buffers, barriers, plan, layouts)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(barriers.v_empty.index(last_slot))
    return acc, weights, state, correction


@gluon.jit
def _scale_product(product, slot, buffers, plan: gl.constexpr, layouts: gl.constexpr):
    """Multiplies q.k of one tile with the scales of tokens, if they have some."""
    if plan.kv_scale == "token":
        scales = buffers.k_scales.index(slot).load(gl.SliceLayout(0, layouts.logits))
        product = product * scales[None, :]
    return product


@gluon.jit
def load_scale(scales, info, plan: gl.constexpr):
    """The scale of all codes of a tile, where they have one of the cache or of its head, or none."""
    scale = 1.0
    if plan.kv_scale == "tensor":
        scale = gl.load(scales)
    if plan.kv_scale == "head":
        scale = gl.load(scales + gl.maximum(info.head, 0))
    return scale


@gluon.jit
def _finish_weights(
    weights,
    slot,
    phase,
    block,
    info,
    more,
    DIRTY: gl.constexpr,
    buffers,
    barriers,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Waits for the values of tile ``block``; the weights as they go into the product with these."""
    if plan.kv_scale == "token":
        # The scales come with the values.
        _receive_values(slot, phase, block, info, more, DIRTY, buffers, barriers, plan)
        scales = buffers.v_scales.index(slot).load(gl.SliceLayout(0, layouts.logits))
        weights = gl.convert_layout((weights * scales[None, :]).to(buffers.k.dtype), layouts.weights)
    else:
        weights = gl.convert_layout(weights.to(buffers.k.dtype), layouts.weights)
        _receive_values(slot, phase, block, info, more, DIRTY, buffers, barriers, plan)
    return weights


@gluon.jit
def _receive_values(slot, phase, block, info, more, DIRTY: gl.constexpr, buffers, barriers, plan: gl.constexpr):
    """Waits for the values of tile ``block``, and sets to zero those that no query of the sequence sees.

    A weight of zero does not hide what is not a number. All groups do it, each before its own product: they write the
    same bits. Of codes they are zero since they were widened.
    """
    mbarrier.wait(barriers.v_full.index(slot), phase, pred=more)
    if DIRTY and not plan.has_codes:
        first = block * plan.block_k
        if more & ((first < info.lowest) | (first + plan.block_k > info.length)):
            layout: gl.constexpr = gl.BlockedLayout(
                [1, 8], [256 // plan.v_panel, plan.v_panel // 8], [_WARPS, 1], [1, 0]
            )
            key = first + gl.arange(0, plan.block_k, gl.SliceLayout(1, layout))
            is_seen = (key >= info.lowest) & (key < info.length)
            PANELS: gl.constexpr = plan.v_panels
            for panel in gl.static_range(PANELS):
                values = buffers.v_panels.index(slot * PANELS + panel)
                seen = gl.where(is_seen[:, None], values.load(layout), 0.0)
                values.store(seen)
            fence_async_shared()
            synchronize()


@gluon.jit
def multiply_values(weights, slot, acc, buffers):
    """Starts adding the weighted sum of one tile's values to ``acc``."""
    return warpgroup_mma(weights, buffers.v.index(slot), acc, is_async=True)


@gluon.jit
def _multiply_keys(q_tile, slot, buffers, plan: gl.constexpr, layouts: gl.constexpr):
    """Starts the product q.k of one tile."""
    zeros = gl.full([_ROWS, plan.block_k], 0.0, gl.float32, layouts.logits)
    return warpgroup_mma(q_tile, buffers.k.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def _await_turn(CONSUMER: gl.constexpr, count, barriers, plan: gl.constexpr):
    """Both groups take equally many steps; the first waits for the other's step before, the second for the same one."""
    if plan.ping_pong:
        mbarrier.wait(barriers.turn.index(CONSUMER), (count & 1) ^ (1 - CONSUMER))


@gluon.jit
def _pass_turn(CONSUMER: gl.constexpr, barriers, plan: gl.constexpr):
    if plan.ping_pong:
        mbarrier.arrive(barriers.turn.index(1 - CONSUMER))
