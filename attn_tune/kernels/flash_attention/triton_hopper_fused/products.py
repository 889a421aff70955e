"""Device code of products over tiles in shared memory, and of the additions to dq."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma

from attn_tune.kernels.flash_attention.triton_hopper_fused.config import CONSUMERS, ROWS
from attn_tune.kernels.flash_attention.triton_hopper_fused.tiles import place_of, slot_of

_ROWS = gl.constexpr(ROWS)
_CONSUMERS = gl.constexpr(CONSUMERS)


@gluon.jit
def multiply_keys(
    CONSUMER: gl.constexpr,
    count,
    more,
    buffers,
    barriers,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """Starts the product k.q ``[64, rows]`` of one step. Without ``more`` no queries come."""
    slot, phase = slot_of(count, plan.stages)
    OWN_KEYS: gl.constexpr = 0 if plan.shares_keys else CONSUMER
    OWN_ROWS: gl.constexpr = CONSUMER if plan.shares_keys else 0
    k_tile = buffers.k.index(OWN_KEYS).reshape([_ROWS, static.head_dim])
    q_tile = buffers.q.index(slot * plan.row_tiles + OWN_ROWS).reshape([plan.rows, static.head_dim])
    zeros = gl.zeros([_ROWS, plan.rows], gl.float32, layouts.logits)
    mbarrier.wait(barriers.q_full.index(slot), phase, pred=more)
    return warpgroup_mma(k_tile, q_tile.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def multiply_rows(CONSUMER: gl.constexpr, pairs, panels, acc, slot, ds_slot, plan: gl.constexpr):
    """Starts adding one step's rows to this group's columns of dk or dv, where both groups share keys."""
    TILES: gl.constexpr = plan.row_tiles
    for i in gl.static_range(TILES):
        pair_tile = pairs.index(ds_slot * _CONSUMERS + i).permute((1, 0))
        row_tile = panels.index((slot * TILES + i) * _CONSUMERS + CONSUMER)
        acc = warpgroup_mma(pair_tile, row_tile, acc, is_async=True)
    return acc


@gluon.jit
def multiply_share(
    CONSUMER: gl.constexpr,
    PART: gl.constexpr,
    ds_slot,
    buffers,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """Starts one part of this group's half of a tile's dq, ``[64, 64]``, from the gradients of all groups' logits."""
    share = gl.zeros([_ROWS, _ROWS], gl.float32, layouts.share)
    PANEL: gl.constexpr = PART if plan.splits_rows else CONSUMER * plan.dq_parts + PART
    PANELS: gl.constexpr = static.head_dim // _ROWS
    TILES: gl.constexpr = plan.key_tiles
    for i in gl.static_range(TILES):
        place = ds_slot * _CONSUMERS + i
        if plan.shares_keys:
            ds_tile = buffers.ds_panels.index(ds_slot)
        elif plan.splits_rows:
            ds_tile = buffers.ds_panels.index(place * _CONSUMERS + CONSUMER).permute((1, 0))
        else:
            ds_tile = buffers.ds.index(place).permute((1, 0))
        share = warpgroup_mma(ds_tile, buffers.k_panels.index(i * PANELS + PANEL), share, use_acc=i > 0, is_async=True)
    return share


@gluon.jit
def add_share(
    CONSUMER: gl.constexpr,
    PART: gl.constexpr,
    share,
    step,
    walk,
    dq_desc,
    dq,
    buffers,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """Adds one part of this group's half of dq of a walk's ``step`` to the sums in device memory."""
    block, head = place_of(step, walk, static)
    first = block * static.block_q
    column = head * static.head_dim + PART * _ROWS
    if plan.splits_rows:
        first += CONSUMER * _ROWS
    else:
        column += CONSUMER * plan.dq_parts * _ROWS
    if plan.staged_dq:
        slot = buffers.dq.index(CONSUMER)
        # The part before must have left.
        tma.store_wait(0)
        slot.reshape([_ROWS, _ROWS]).store(share)
        fence_async_shared()
        tma.async_atomic_add(dq_desc, [walk.batch, first, column], slot)
    else:
        stride: gl.constexpr = static.num_q_heads * static.head_dim
        row = first + gl.arange(0, _ROWS, gl.SliceLayout(1, layouts.share))
        columns = gl.arange(0, _ROWS, gl.SliceLayout(0, layouts.share))
        base = dq + (walk.batch.to(gl.int64) * static.q_len + first) * stride + column
        places = base + (((row - first) * stride)[:, None] + columns[None, :])
        if static.ragged_q:
            gl.atomic_add(places, share, mask=(row < static.q_len)[:, None], sem="relaxed")
        else:
            gl.atomic_add(places, share, sem="relaxed")
