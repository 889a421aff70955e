"""Device code of the warps that gather keys by their indices."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from attn_tune.kernels.lang.gluon.latents import GROUPS, KEYS, ROWS
from attn_tune.kernels.lang.gluon.latents.slots import piece_of, rows_layout, stage_of
from attn_tune.kernels.lang.gluon.names import viewed
from attn_tune.kernels.sparse_mla.triton_hopper.walk import first_index

_KEYS = gl.constexpr(KEYS)
_GROUPS = gl.constexpr(GROUPS)
_ROWS = gl.constexpr(ROWS)
# The name on the right is that of Triton 3.6.
_start = getattr(async_copy, "async_load", async_copy.async_copy_global_to_shared)


@gluon.jit
def gather_tiles(kv, indices, buffers, barriers, plan: gl.constexpr):
    """Gathers the keys of each tile as far ahead as slots are free."""
    query, first, end, pairs = first_index(plan)
    kv += query // plan.q_len * plan.kv_len * plan.head_dim
    named = (indices + query * plan.selected, end)
    tile = pairs * 0
    for _ in range(pairs):
        for group in gl.static_range(_GROUPS):
            _gather(group, kv, named, first + tile * _KEYS, tile, buffers, barriers, plan)
            tile += 1


@gluon.jit
def _gather(GROUP: gl.constexpr, kv, named, start, tile, buffers, barriers, plan: gl.constexpr):
    """Starts the copies of a tile of a group, the half first that is free first. What is not named is zero.

    The barrier of a half counts the threads whose copies have come.
    """
    PIECES: gl.constexpr = plan.pieces
    COLUMNS: gl.constexpr = plan.half // PIECES
    SLOTS: gl.constexpr = plan.stages * _GROUPS * PIECES
    layout: gl.constexpr = rows_layout(COLUMNS)
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_KEYS, COLUMNS], buffers.k.dtype)
    pieces = viewed(buffers.k, [SLOTS, _KEYS, COLUMNS], shared)
    # Before the wait, which hides how long these loads take.
    keys = _named(named, start, layout)
    stage, phase = stage_of(tile, plan)
    for i in gl.static_range(_GROUPS * PIECES):
        own = piece_of(GROUP, i, PIECES)
        if i % PIECES == 0:
            mbarrier.wait(barriers.k_empty.index(stage * _GROUPS + own // PIECES), phase ^ 1)
        piece = stage * _GROUPS * PIECES + own
        _copy_columns(pieces.index(piece), kv, keys, own * COLUMNS, COLUMNS, layout, plan)
        if plan.rest > 0 and i == _GROUPS * PIECES - 1:
            beside: gl.constexpr = rows_layout(plan.rest)
            also = _named(named, start, beside)
            _copy_columns(buffers.k_rest.index(stage), kv, also, plan.width, plan.rest, beside, plan)
        async_copy.mbarrier_arrive(barriers.k_full[piece_of(GROUP, i, PIECES)].index(stage), increment_count=False)


@gluon.jit
def _named(named, start, layout: gl.constexpr):
    """The keys that the indices of a tile name; -1 behind the last one."""
    indices, end = named
    place = start + gl.arange(0, _KEYS, gl.SliceLayout(1, layout))
    return gl.load(indices + place, mask=place < end, other=-1)


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
    query, _, _, _ = first_index(plan)
    for half in gl.static_range(_GROUPS):
        _copy_heads(buffers.q.index(half), q, query, tile, half * plan.half, plan.half, plan)
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
