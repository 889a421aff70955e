"""Device code of the warp that copies queries and pages of the cache by descriptor."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from attn_tune.kernels.lang.gluon.latents import GROUPS, KEYS, PANEL, ROWS
from attn_tune.kernels.lang.gluon.latents.slots import stage_of
from attn_tune.kernels.lang.gluon.names import start_copy, viewed
from attn_tune.kernels.paged_decode.triton_hopper.walk import next_stretch

_ROWS = gl.constexpr(ROWS)
_KEYS = gl.constexpr(KEYS)
_GROUPS = gl.constexpr(GROUPS)
_PANEL = gl.constexpr(PANEL)


@gluon.jit
def copy_tiles(
    work,
    kv_lens,
    page_table,
    q_desc,
    k_desc,
    buffers,
    barriers,
    queries,
    static: gl.constexpr,
    plan: gl.constexpr,
):
    """Copies the queries and the keys of each stretch as far ahead as slots are free."""
    position, end, sequence, offset = work
    first_row = gl.program_id(0) % static.tiles * _ROWS
    tile = 0
    turn = 0
    while position < end:
        stretch = next_stretch(position, end, sequence, offset, kv_lens, static)
        if stretch.count > 0:
            _copy_queries(q_desc, sequence * static.rows + first_row, turn, buffers, queries, plan)
            turn += 1
        start = stretch.block * _KEYS
        for _ in range((stretch.count + 1) // 2):
            for group in gl.static_range(_GROUPS):
                _copy_keys(group, k_desc, page_table, sequence, stretch, start, tile, buffers, barriers, static, plan)
                tile += 1
                start += _KEYS
        position += stretch.count
        sequence += 1
        offset = 0


@gluon.jit
def _copy_queries(q_desc, row, turn, buffers, queries, plan: gl.constexpr):
    q_full, q_empty = queries
    full = q_full.index(0)
    PANELS: gl.constexpr = plan.panels
    BEHIND: gl.constexpr = plan.width
    LAYOUT: gl.constexpr = q_desc.layout
    mbarrier.wait(q_empty.index(0), (turn & 1) ^ 1)
    mbarrier.expect(full, 2 * _ROWS * (plan.width + plan.rest))
    copies = viewed(buffers.q, [PANELS, _ROWS, _PANEL], LAYOUT)
    for panel in gl.static_range(PANELS):
        start_copy(q_desc, [row, panel * _PANEL], full, copies.index(panel))
    if plan.rest > 0:
        start_copy(q_desc, [row, BEHIND], full, buffers.q_rest.index(0))


@gluon.jit
def _copy_keys(
    GROUP: gl.constexpr,
    k_desc,
    page_table,
    sequence,
    stretch,
    start,
    tile,
    buffers,
    barriers,
    static: gl.constexpr,
    plan: gl.constexpr,
):
    """Starts the copies of a tile of a group, the half first that is free first: of each page and panel of columns."""
    CHUNKS: gl.constexpr = plan.chunks
    # Before the wait, which hides how long these loads take.
    rows = ()
    for i in gl.static_range(CHUNKS):
        rows += (_row_of_cache(page_table, sequence, stretch, start + i * plan.chunk, static, plan),)
    stage, phase = stage_of(tile, plan)
    _copy_half(GROUP, 0, k_desc, rows, stage, phase, buffers, barriers, plan)
    _copy_half(1 - GROUP, plan.rest, k_desc, rows, stage, phase, buffers, barriers, plan)


@gluon.jit
def _copy_half(
    HALF: gl.constexpr, REST: gl.constexpr, k_desc, rows, stage, phase, buffers, barriers, plan: gl.constexpr
):
    """Waits for a free half of a slot and starts its copies, and those of the columns behind."""
    CHUNKS: gl.constexpr = plan.chunks
    PANELS: gl.constexpr = plan.panels // _GROUPS
    BEHIND: gl.constexpr = plan.width
    LAYOUT: gl.constexpr = k_desc.layout
    COPIES: gl.constexpr = plan.stages * plan.panels * CHUNKS
    RESTS: gl.constexpr = plan.stages * CHUNKS
    CHUNK: gl.constexpr = plan.chunk
    half = stage * _GROUPS + HALF
    full = barriers.k_full[HALF].index(stage)
    copies = viewed(buffers.k, [COPIES, CHUNK, _PANEL], LAYOUT)
    mbarrier.wait(barriers.k_empty.index(half), phase ^ 1)
    mbarrier.expect(full, 2 * _KEYS * (plan.half + REST))
    for i in gl.static_range(CHUNKS):
        for panel in gl.static_range(PANELS):
            place = (half * PANELS + panel) * CHUNKS + i
            start_copy(k_desc, [rows[i], (HALF * PANELS + panel) * _PANEL], full, copies.index(place))
        if REST > 0:
            rest = viewed(buffers.k_rest, [RESTS, CHUNK, _PANEL], LAYOUT)
            start_copy(k_desc, [rows[i], BEHIND], full, rest.index(stage * CHUNKS + i))


@gluon.jit
def _row_of_cache(page_table, sequence, stretch, start, static: gl.constexpr, plan: gl.constexpr):
    """The row of the cache of the keys from token ``start`` on; behind its end where none of them counts."""
    is_seen = (start < stretch.end) & (start + plan.chunk > stretch.lowest)
    if static.table_width > 0:
        entry = page_table + sequence.to(gl.int64) * static.table_width + start // static.page_size
        row = gl.load(entry, mask=is_seen, other=0) * plan.page_rows + start % static.page_size
    else:
        row = sequence * plan.page_rows + start
    return gl.where(is_seen, row, plan.cache_rows)
