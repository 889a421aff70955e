"""Device code of the warp that copies queries and pages of the cache by descriptor."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from attn_tune.kernels.lang.gluon.names import start_copy
from attn_tune.kernels.paged_decode.triton_hopper.config import BLOCK, GROUPS, KEYS, ROWS
from attn_tune.kernels.paged_decode.triton_hopper.plan import PANEL
from attn_tune.kernels.paged_decode.triton_hopper.walk import next_stretch, stage_of

_ROWS = gl.constexpr(ROWS)
_KEYS = gl.constexpr(KEYS)
_BLOCK = gl.constexpr(BLOCK)
_GROUPS = gl.constexpr(GROUPS)
_PANEL = gl.constexpr(PANEL)


@gluon.jit
def copy_tiles(work, kv_lens, page_table, q_desc, k_desc, buffers, barriers, static: gl.constexpr, plan: gl.constexpr):
    """Copies the queries and the keys of each stretch as far ahead as slots are free."""
    position, end, sequence, offset = work
    first_row = gl.program_id(0) % static.tiles * _ROWS
    tile = 0
    turn = 0
    while position < end:
        stretch = next_stretch(position, end, sequence, offset, kv_lens, static)
        if stretch.count > 0:
            _copy_queries(q_desc, sequence * static.rows + first_row, turn, buffers, barriers, plan)
            turn += 1
        for j in range(stretch.count):
            _copy_keys(k_desc, page_table, sequence, stretch, j, tile, buffers, barriers, static, plan)
            tile += 1
        position += stretch.count
        sequence += 1
        offset = 0


@gluon.jit
def _copy_queries(q_desc, row, turn, buffers, barriers, plan: gl.constexpr):
    full = barriers.q_full.index(0)
    PANELS: gl.constexpr = plan.panels
    BEHIND: gl.constexpr = plan.width
    mbarrier.wait(barriers.q_empty.index(0), (turn & 1) ^ 1)
    mbarrier.expect(full, 2 * _ROWS * (plan.width + plan.rest))
    for panel in gl.static_range(PANELS):
        start_copy(q_desc, [row, panel * _PANEL], full, buffers.q_copies.index(panel))
    if plan.rest > 0:
        start_copy(q_desc, [row, BEHIND], full, buffers.q_rest.index(0))


@gluon.jit
def _copy_keys(
    k_desc, page_table, sequence, stretch, j, tile, buffers, barriers, static: gl.constexpr, plan: gl.constexpr
):
    """Waits for a free slot and starts the copies of a tile into it: for each page, and each panel of columns."""
    CHUNKS: gl.constexpr = plan.chunks
    PANELS: gl.constexpr = plan.panels
    BEHIND: gl.constexpr = plan.width
    # Before the wait, which hides how long these loads take.
    rows = ()
    for i in gl.static_range(_GROUPS * CHUNKS):
        start = (stretch.block + j) * _KEYS + i * plan.chunk
        rows += (_row_of_cache(page_table, sequence, stretch, start, static, plan),)
    stage, phase = stage_of(tile, plan)
    mbarrier.wait(barriers.k_empty.index(stage), phase ^ 1)
    for part in gl.static_range(_GROUPS):
        slot = stage * _GROUPS + part
        full = barriers.k_full.index(slot)
        mbarrier.expect(full, 2 * _BLOCK * (plan.width + plan.rest))
        for i in gl.static_range(CHUNKS):
            row = rows[part * CHUNKS + i]
            for panel in gl.static_range(PANELS):
                index = (slot * PANELS + panel) * CHUNKS + i
                start_copy(k_desc, [row, panel * _PANEL], full, buffers.k_copies.index(index))
            if plan.rest > 0:
                start_copy(k_desc, [row, BEHIND], full, buffers.k_rest_copies.index(slot * CHUNKS + i))


@gluon.jit
def _row_of_cache(page_table, sequence, stretch, start, static: gl.constexpr, plan: gl.constexpr):
    """The row of the cache of the keys from token ``start`` on; behind its end where none of them counts."""
    is_seen = (start < stretch.length) & (start + plan.chunk > stretch.lowest)
    if static.table_width > 0:
        entry = page_table + sequence.to(gl.int64) * static.table_width + start // static.page_size
        row = gl.load(entry, mask=is_seen, other=0) * plan.page_rows + start % static.page_size
    else:
        row = sequence * plan.page_rows + start
    return gl.where(is_seen, row, plan.cache_rows)
