"""Device code of one step of a group of warps: a tile of rows of one head, for dk, dv and dq."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attn_tune.kernels.flash_attention.triton_hopper_fused.config import CONSUMERS, ROWS
from attn_tune.kernels.flash_attention.triton_hopper_fused.logits import kept, weights_of
from attn_tune.kernels.flash_attention.triton_hopper_fused.plan import DS_SLOTS
from attn_tune.kernels.flash_attention.triton_hopper_fused.products import (
    add_share,
    multiply_keys,
    multiply_rows,
    multiply_share,
)
from attn_tune.kernels.flash_attention.triton_hopper_fused.tiles import place_of, slot_of
from attn_tune.kernels.lang.gluon.attention.logits import squash

_ROWS = gl.constexpr(ROWS)
_CONSUMERS = gl.constexpr(CONSUMERS)
_DS_SLOTS = gl.constexpr(DS_SLOTS)


@gluon.jit
def differentiate_rows(
    CONSUMER: gl.constexpr,
    carried,
    numbers,
    walk,
    columns,
    pointers,
    buffers,
    barriers,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """One step: a tile of rows of one head. ``carried``: dk, dv and, with ``plan.ahead``, this step's k.q."""
    dk_acc, dv_acc, product = carried
    step, steps, count = numbers
    seeds, dq_desc, dq = pointers
    block, head = place_of(step, walk, static)
    slot, _ = slot_of(count, plan.stages)
    ds_slot, ds_phase = slot_of(count, _DS_SLOTS)
    OWN_KEYS: gl.constexpr = 0 if plan.shares_keys else CONSUMER
    OWN_ROWS: gl.constexpr = CONSUMER if plan.shares_keys else 0
    dout_slot, dout_phase = slot_of(count, plan.dout_stages)
    tile = slot * plan.row_tiles + OWN_ROWS
    dout_number = dout_slot * plan.row_tiles + OWN_ROWS
    first = block * static.block_q + OWN_ROWS * plan.rows
    v_tile = buffers.v.index(OWN_KEYS).reshape([_ROWS, static.head_dim])
    dout_tile = buffers.dout.index(dout_number).reshape([plan.rows, static.head_dim])
    zeros = gl.zeros([_ROWS, plan.rows], gl.float32, layouts.logits)
    if not plan.ahead:
        started = multiply_keys(CONSUMER, count, True, buffers, barriers, plan, static, layouts)
    mbarrier.wait(barriers.dout_full.index(dout_slot), dout_phase)
    dweights = warpgroup_mma(v_tile, dout_tile.permute((1, 0)), zeros, use_acc=False, is_async=True)
    if not plan.ahead:
        product = warpgroup_mma_wait(1, deps=[started])
    squashed = squash(product, plan, static)
    row_lse = buffers.lse.index(tile).reshape([plan.rows]).load(gl.SliceLayout(0, layouts.logits))
    segments = buffers.segments.index(tile)
    weights = weights_of(squashed, row_lse, columns, block, first, walk, segments, plan, static)
    used = weights
    if static.keep_threshold is not None:
        keep = kept(first, head, columns, seeds, layouts.logits, plan, static)
        used = gl.where(keep, weights, 0.0)
    used = used.to(buffers.q.dtype)
    if plan.shares_keys:
        buffers.p.index(ds_slot * _CONSUMERS + CONSUMER).permute((1, 0)).store(used)
        dweights = warpgroup_mma_wait(0, deps=[dweights])
    else:
        used = gl.convert_layout(used, layouts.operand)
        dv_acc = warpgroup_mma(used, dout_tile, dv_acc, is_async=True)
        dweights = warpgroup_mma_wait(1, deps=[dweights])
    if static.keep_threshold is not None:
        # Less dropout's scale, as delta is; gradients are multiplied by it at the end.
        dweights = gl.where(keep, dweights, 0.0)
    row_delta = buffers.delta.index(dout_number).reshape([plan.rows]).load(gl.SliceLayout(0, layouts.logits))
    dlogits = weights * (dweights - row_delta[None, :])
    if static.soft_cap is not None:
        dlogits *= 1.0 - squashed * squashed
    dlogits = dlogits.to(buffers.q.dtype)
    ds_tile = buffers.ds.index(ds_slot * _CONSUMERS + CONSUMER)
    if plan.shares_keys:
        ds_tile = ds_tile.permute((1, 0))
    ds_tile.store(dlogits)
    fence_async_shared()
    mbarrier.arrive(barriers.ds_full.index(ds_slot))
    # Each wait as early as it costs nothing: operands in registers are held until then.
    if plan.shares_keys:
        mbarrier.wait(barriers.ds_full.index(ds_slot), ds_phase)
        dv_acc = multiply_rows(CONSUMER, buffers.p, buffers.dout_panels, dv_acc, dout_slot, ds_slot, plan)
        dk_acc = multiply_rows(CONSUMER, buffers.ds, buffers.q_panels, dk_acc, slot, ds_slot, plan)
        dv_acc = warpgroup_mma_wait(plan.row_tiles, deps=[dv_acc])
        mbarrier.arrive(barriers.dout_empty.index(dout_slot))
    else:
        q_tile = buffers.q.index(slot).reshape([plan.rows, static.head_dim])
        dk_acc = warpgroup_mma(gl.convert_layout(dlogits, layouts.operand), q_tile, dk_acc, is_async=True)
        dv_acc = warpgroup_mma_wait(1, deps=[dv_acc])
        mbarrier.arrive(barriers.dout_empty.index(dout_slot))
        mbarrier.wait(barriers.ds_full.index(ds_slot), ds_phase)
    PARTS: gl.constexpr = plan.dq_parts
    shares = ()
    for i in gl.static_range(PARTS):
        shares += (multiply_share(CONSUMER, i, ds_slot, buffers, plan, static, layouts),)
    dk_acc = warpgroup_mma_wait(plan.key_tiles * PARTS, deps=[dk_acc])
    mbarrier.arrive(barriers.q_empty.index(slot))
    if plan.ahead:
        # The next product runs while this share of dq leaves. After the last step none is wanted: what is left in the
        # slot is multiplied, and not used.
        more = step + 1 < steps
        started = multiply_keys(CONSUMER, count + 1, more, buffers, barriers, plan, static, layouts)
    for i in gl.static_range(PARTS):
        share = warpgroup_mma_wait(plan.key_tiles * (PARTS - 1 - i) + plan.ahead, deps=[shares[i]])
        add_share(CONSUMER, i, share, step, walk, dq_desc, dq, buffers, plan, static, layouts)
    if plan.ahead:
        # Here and not where it is wanted: in flight at the end of a loop, ptxas would wait for every instruction.
        product = warpgroup_mma_wait(0, deps=[started])
    return dk_acc, dv_acc, product


@gluon.jit
def differentiate_late(
    CONSUMER: gl.constexpr,
    carried,
    numbers,
    walk,
    columns,
    pointers,
    buffers,
    barriers,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """As ``differentiate_rows``, with dq of the step before: a group does not wait for what the other one does now.

    The product for dq runs beside this step's weights. In the first step it is made of what is left in the slot, and
    not added.
    """
    dk_acc, dv_acc, product = carried
    step, steps, count = numbers
    seeds, dq_desc, dq = pointers
    block, head = place_of(step, walk, static)
    slot, _ = slot_of(count, plan.stages)
    ds_slot, _ = slot_of(count, _DS_SLOTS)
    dout_slot, dout_phase = slot_of(count, plan.dout_stages)
    v_tile = buffers.v.index(CONSUMER).reshape([_ROWS, static.head_dim])
    q_tile = buffers.q.index(slot).reshape([plan.rows, static.head_dim])
    dout_tile = buffers.dout.index(dout_slot).reshape([plan.rows, static.head_dim])
    zeros = gl.zeros([_ROWS, plan.rows], gl.float32, layouts.logits)
    if not plan.ahead:
        started = multiply_keys(CONSUMER, count, True, buffers, barriers, plan, static, layouts)
    share = multiply_before(CONSUMER, count, buffers, barriers, plan, static, layouts)
    if not plan.ahead:
        product = warpgroup_mma_wait(plan.key_tiles, deps=[started])
    squashed = squash(product, plan, static)
    row_lse = buffers.lse.index(slot).reshape([plan.rows]).load(gl.SliceLayout(0, layouts.logits))
    segments = buffers.segments.index(slot)
    first = block * static.block_q
    weights = weights_of(squashed, row_lse, columns, block, first, walk, segments, plan, static)
    used = weights
    if static.keep_threshold is not None:
        keep = kept(first, head, columns, seeds, layouts.logits, plan, static)
        used = gl.where(keep, weights, 0.0)
    mbarrier.wait(barriers.dout_full.index(dout_slot), dout_phase)
    used = gl.convert_layout(used.to(buffers.q.dtype), layouts.operand)
    dv_acc = warpgroup_mma(used, dout_tile, dv_acc, is_async=True)
    share = warpgroup_mma_wait(1, deps=[share])
    if step > 0:
        add_share(CONSUMER, 0, share, step - 1, walk, dq_desc, dq, buffers, plan, static, layouts)
    if plan.rows > _ROWS:
        # Registers of the weights that dv is made of are wanted now.
        dv_acc = warpgroup_mma_wait(0, deps=[dv_acc])
    dweights = warpgroup_mma(v_tile, dout_tile.permute((1, 0)), zeros, use_acc=False, is_async=True)
    if plan.rows <= _ROWS:
        dv_acc = warpgroup_mma_wait(1, deps=[dv_acc])
    dweights = warpgroup_mma_wait(0, deps=[dweights])
    if static.keep_threshold is not None:
        # Less dropout's scale, as delta is; gradients are multiplied by it at the end.
        dweights = gl.where(keep, dweights, 0.0)
    row_delta = buffers.delta.index(dout_slot).reshape([plan.rows]).load(gl.SliceLayout(0, layouts.logits))
    dlogits = weights * (dweights - row_delta[None, :])
    if static.soft_cap is not None:
        dlogits *= 1.0 - squashed * squashed
    dlogits = dlogits.to(buffers.q.dtype)
    buffers.ds.index(ds_slot * _CONSUMERS + CONSUMER).store(dlogits)
    fence_async_shared()
    mbarrier.arrive(barriers.ds_full.index(ds_slot))
    dk_acc = warpgroup_mma(gl.convert_layout(dlogits, layouts.operand), q_tile, dk_acc, is_async=True)
    mbarrier.arrive(barriers.dout_empty.index(dout_slot))
    if plan.ahead:
        more = step + 1 < steps
        started = multiply_keys(CONSUMER, count + 1, more, buffers, barriers, plan, static, layouts)
    dk_acc = warpgroup_mma_wait(plan.ahead, deps=[dk_acc])
    mbarrier.arrive(barriers.q_empty.index(slot))
    if plan.ahead:
        product = warpgroup_mma_wait(0, deps=[started])
    return dk_acc, dv_acc, product


@gluon.jit
def multiply_before(
    CONSUMER: gl.constexpr, count, buffers, barriers, plan: gl.constexpr, static: gl.constexpr, layouts: gl.constexpr
):
    """Waits for both groups' gradients of the logits of the step before ``count``, and starts this group's half of dq.

    Before a program's first step the barrier is as if the slot had been filled.
    """
    slot, phase = slot_of(count - 1, _DS_SLOTS)
    mbarrier.wait(barriers.ds_full.index(slot), phase)
    return multiply_share(CONSUMER, 0, slot, buffers, plan, static, layouts)


@gluon.jit
def add_last(
    CONSUMER: gl.constexpr,
    steps,
    count,
    walk,
    pointers,
    buffers,
    barriers,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """Adds dq of a walk's last step, where each step adds that of the one before; ``count`` steps are done."""
    _, dq_desc, dq = pointers
    if steps > 0:
        share = multiply_before(CONSUMER, count, buffers, barriers, plan, static, layouts)
        share = warpgroup_mma_wait(0, deps=[share])
        add_share(CONSUMER, 0, share, steps - 1, walk, dq_desc, dq, buffers, plan, static, layouts)
