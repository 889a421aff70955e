"""Device code of the warps that gather keys by their indices."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from attn_tune.kernels.sparse_mla.triton_hopper.config import BLOCK, GROUPS, KEYS, ROWS, WARPS
from attn_tune.kernels.sparse_mla.triton_hopper.walk import first_index, stage_of

_KEYS = gl.constexpr(KEYS)
_BLOCK = gl.constexpr(BLOCK)
_GROUPS = gl.constexpr(GROUPS)
_ROWS = gl.constexpr(ROWS)
_WARPS = gl.constexpr(WARPS)
# The name on the right is that of Triton 3.6.
_start = getattr(async_copy, "async_load", async_copy.async_copy_global_to_shared)


@gluon.constexpr_function
def rows_layout(width):
    """Sixteen bytes a thread, and as much of a row a warp as it can hold."""
    across = min(32, width // 8)
    return gl.BlockedLayout([1, 8], [32 // across, across], [_WARPS.value, 1], [1, 0])


@gluon.jit
def gather_tiles(kv, indices, buffers, barriers, plan: gl.constexpr):
    """Gathers the keys of each tile as far ahead as slots are free."""
    query, first, count = first_index(plan)
    kv += query // plan.q_len * plan.kv_len * plan.head_dim
    indices += query * plan.selected
    for j in range(count):
        # Before the wait, which hides how long these loads take.
        start = (first + j) * _KEYS
        wide: gl.constexpr = rows_layout(plan.width)
        near = _named(indices, start, wide, plan)
        far = _named(indices, start + _BLOCK, wide, plan)
        stage, phase = stage_of(j, plan)
        mbarrier.wait(barriers.k_empty.index(stage), phase ^ 1)
        _gather(kv, indices, near, start, stage * _GROUPS, buffers, barriers, plan)
        _gather(kv, indices, far, start + _BLOCK, stage * _GROUPS + 1, buffers, barriers, plan)


@gluon.jit
def _named(indices, start, layout: gl.constexpr, plan: gl.constexpr):
    """The keys that the indices of a slot name; -1 behind the last one."""
    place = start + gl.arange(0, _BLOCK, gl.SliceLayout(1, layout))
    return gl.load(indices + place, mask=place < plan.selected, other=-1)


@gluon.jit
def _gather(kv, indices, named, start, slot, buffers, barriers, plan: gl.constexpr):
    """Starts the copies of a slot; what is not named is zero. Its barrier counts the threads whose copies have come."""
    wide: gl.constexpr = rows_layout(plan.width)
    _copy_columns(buffers.k.index(slot), kv, named, 0, plan.width, wide, plan)
    if plan.rest > 0:
        beside: gl.constexpr = rows_layout(plan.rest)
        also = _named(indices, start, beside, plan)
        _copy_columns(buffers.k_rest.index(slot), kv, also, plan.width, plan.rest, beside, plan)
    async_copy.mbarrier_arrive(barriers.k_full.index(slot), increment_count=False)


@gluon.jit
def _copy_columns(
    memory, kv, named, begin: gl.constexpr, width: gl.constexpr, layout: gl.constexpr, plan: gl.constexpr
):
    """Starts the copies of some columns of the keys that are named; the others are zero."""
    column = begin + gl.arange(0, width, gl.SliceLayout(0, layout))
    valid = (named >= 0) & (named < plan.kv_len)
    offset = gl.where(valid, named, 0)
    if plan.is_wide:
        offset = offset.to(gl.int64)
    places = kv + (offset * plan.head_dim)[:, None] + column[None, :]
    inside = valid[:, None] & (column < plan.head_dim)[None, :]
    _start(memory, places, mask=inside)


@gluon.jit
def copy_queries(q, buffers, plan: gl.constexpr):
    """Copies the queries of a tile, and waits until they have come."""
    tile = gl.program_id(0) % plan.tiles
    query, _, _ = first_index(plan)
    _copy_heads(buffers.q.index(0), q, query, tile, 0, plan.width, plan)
    if plan.rest > 0:
        _copy_heads(buffers.q_rest.index(0), q, query, tile, plan.width, plan.rest, plan)
    async_copy.commit_group()
    async_copy.wait_group(0)


@gluon.jit
def _copy_heads(memory, q, query, tile, begin: gl.constexpr, width: gl.constexpr, plan: gl.constexpr):
    layout: gl.constexpr = rows_layout(width)
    head = tile * _ROWS + gl.arange(0, _ROWS, gl.SliceLayout(1, layout))
    column = begin + gl.arange(0, width, gl.SliceLayout(0, layout))
    places = q + query * plan.heads * plan.head_dim + (head * plan.head_dim)[:, None] + column[None, :]
    _start(memory, places, mask=(head < plan.heads)[:, None] & (column < plan.head_dim)[None, :])
