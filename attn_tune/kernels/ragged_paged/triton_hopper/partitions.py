"""Device code of the partitions: one warp that copies, and one to three groups of warps that multiply."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma_wait

from attn_tune.kernels.lang.gluon.device import next_place
from attn_tune.kernels.lang.gluon.names import start_copy
from attn_tune.kernels.ragged_paged.triton_hopper.config import ROWS, WARPS
from attn_tune.kernels.ragged_paged.triton_hopper.queries import make_queries_float16, row_layout
from attn_tune.kernels.ragged_paged.triton_hopper.steps import (
    Rows,
    begin,
    load_rows,
    load_scale,
    multiply_values,
    new_state,
    rows_of,
    slot_of,
    step,
    walk,
)
from attn_tune.kernels.ragged_paged.triton_hopper.tiles import (
    count_decoded,
    next_tile,
    publish_tile,
    queue_of,
    receive_tile,
)

LN2 = gl.constexpr(0.6931471805599453)
_ROWS = gl.constexpr(ROWS)
_WARPS = gl.constexpr(WARPS)


class Buffers(NamedTuple):
    """The slots in shared memory, and other views of the same bytes.

    A tile whose rows are wider than 128 bytes lies in panels of 128 bytes, one after the other.

    Attributes:
      q: queries, ``[q_slots * consumers * q_stride, 64, block_h]``: a slot has one and may have more room.
      q_copies: what one copy writes of them, ``[... * k_panels, queries, group, k_panel]``.
      float16_q: the queries in float16, where the plan ``has_factors``; else None.
      out: the output of a tile in the slot of its queries, ``[q_slots * consumers * out_stride, 64, block_v]``.
      k, v: keys and values, ``[stages, block_k, block_h]`` and ``[stages, block_k, block_v]``.
      k_copies, v_copies: what one copy writes of them or of their codes, ``[... * panels * chunks, chunk, 1, panel]``.
      k_panels, v_panels: keys and values again, ``[stages * panels, block_k, panel]``.
      k_codes, v_codes: the codes of one tile in the same panels, ``[panels, block_k, panel]``; None without codes.
      k_scales, v_scales: scales of codes: of tokens ``[stages, block_k]``, else the arrays; None without.
      info: the published ``TileInfo`` of two tiles, one number each.
    """

    q: gl.shared_memory_descriptor
    q_copies: gl.shared_memory_descriptor
    float16_q: gl.shared_memory_descriptor | None
    out: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    k_copies: gl.shared_memory_descriptor
    v_copies: gl.shared_memory_descriptor
    k_panels: gl.shared_memory_descriptor
    v_panels: gl.shared_memory_descriptor
    k_codes: gl.shared_memory_descriptor | None
    v_codes: gl.shared_memory_descriptor | None
    k_scales: gl.shared_memory_descriptor | gl.tensor | None
    v_scales: gl.shared_memory_descriptor | gl.tensor | None
    info: gl.shared_memory_descriptor


class Barriers(NamedTuple):
    """One barrier a slot: ``full`` when its copies have come, ``empty`` when all who read it are done.

    ``turn`` has one for each group of warps that multiply: the other one's products of this step are under way.
    Without codes there are no barriers of theirs.
    """

    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor
    k_empty: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    v_empty: gl.shared_memory_descriptor
    turn: gl.shared_memory_descriptor
    tile_full: gl.shared_memory_descriptor
    tile_empty: gl.shared_memory_descriptor
    k_codes_full: gl.shared_memory_descriptor | None
    k_codes_empty: gl.shared_memory_descriptor | None
    v_codes_full: gl.shared_memory_descriptor | None
    v_codes_empty: gl.shared_memory_descriptor | None


@gluon.jit
def copy_tiles(descriptors, pointers, buffers, barriers, plan: gl.constexpr):
    """Copies queries, keys and values as far ahead as slots are free, keys from the last to the first."""
    q_desc, k_desc, v_desc = descriptors
    page_table, kv_lens, cu_q_lens, decodes, counter = pointers
    count = 0
    turn = 0
    queue = queue_of(cu_q_lens, decodes, plan)
    info = next_tile(gl.program_id(0), counter, cu_q_lens, kv_lens, queue, plan)
    publish_tile(info, turn, buffers, barriers)
    while info.head >= 0:
        _load_query_tile(q_desc, info, turn, buffers, barriers, plan)
        blocks = info.stop - info.begin
        early = gl.minimum(blocks, plan.stages)
        for j in range(early):
            _load_kv_tile(k_desc, v_desc, page_table, info, info.stop - 1 - j, count, buffers, barriers, plan)
            count += 1
        # Only now, when all slots are on their way, is the next tile looked for: that waits for memory several times.
        place = plan.num_programs + next_place(counter)
        next_info = next_tile(place, counter, cu_q_lens, kv_lens, queue, plan)
        publish_tile(next_info, turn + 1, buffers, barriers)
        for j in range(early, blocks):
            _load_kv_tile(k_desc, v_desc, page_table, info, info.stop - 1 - j, count, buffers, barriers, plan)
            count += 1
        info = next_info
        turn += 1


@gluon.jit
def _load_query_tile(q_desc, info, turn, buffers, barriers, plan: gl.constexpr):
    CONSUMERS: gl.constexpr = plan.consumers
    PANELS: gl.constexpr = plan.k_panels
    for i in gl.static_range(CONSUMERS):
        slot = turn % plan.q_slots * plan.consumers + i
        mbarrier.wait(barriers.q_empty.index(slot), (turn // plan.q_slots & 1) ^ 1)
        mbarrier.expect(barriers.q_full.index(slot), 2 * _ROWS * plan.block_h)
        for panel in gl.static_range(PANELS):
            query = info.first + i * _ROWS // plan.group_rows
            head = info.head * plan.group_size + i * _ROWS % plan.group_rows
            index = slot * plan.q_stride * PANELS + panel
            place = [query, head, panel * plan.k_panel]
            start_copy(q_desc, place, barriers.q_full.index(slot), buffers.q_copies.index(index))


@gluon.jit
def _row_of_cache(page_table, info, start, plan: gl.constexpr):
    """The row of the cache of the keys from token ``start`` on; behind its end where none of them counts."""
    is_seen = (start < info.length) & (start + plan.chunk > info.lowest)
    if plan.table_width > 0:
        entry = page_table + info.sequence.to(gl.int64) * plan.table_width + start // plan.page_size
        row = gl.load(entry, mask=is_seen, other=0) * plan.page_rows
        if plan.chunk < plan.page_size:
            row += start % plan.page_size
    else:
        row = info.sequence * plan.page_rows + start
    return gl.where(is_seen, row + info.head * plan.head_rows, plan.cache_rows)


@gluon.jit
def _load_kv_tile(k_desc, v_desc, page_table, info, block, count, buffers, barriers, plan: gl.constexpr):
    """Waits for a free slot of keys, then of values, and starts the copies of one tile into each.

    A copy for each page. Rows behind the end of the cache are read as zeros.
    """
    CHUNKS: gl.constexpr = plan.chunks
    # Before the wait, which hides how long these loads take.
    rows = ()
    for i in gl.static_range(CHUNKS):
        rows += (_row_of_cache(page_table, info, block * plan.block_k + i * plan.chunk, plan),)
    head = info.head * plan.head_step
    slot, phase = slot_of(count, plan)
    k_empty, k_full, v_empty, v_full = barriers.k_empty, barriers.k_full, barriers.v_empty, barriers.v_full
    if plan.has_codes:
        # One slot of each, which is free again when its codes were widened.
        slot, phase = 0, count & 1
        k_empty, k_full = barriers.k_codes_empty, barriers.k_codes_full
        v_empty, v_full = barriers.v_codes_empty, barriers.v_codes_full
    mbarrier.wait(k_empty.index(slot), phase ^ 1)
    mbarrier.expect(k_full.index(slot), plan.cell_bytes * plan.block_k * plan.block_h)
    _start_copies(k_desc, rows, head, slot, k_full, buffers.k_copies, plan.k_panels, plan.k_panel, plan)
    mbarrier.wait(v_empty.index(slot), phase ^ 1)
    mbarrier.expect(v_full.index(slot), plan.cell_bytes * plan.block_k * plan.block_v)
    head += plan.v_head
    _start_copies(v_desc, rows, head, slot, v_full, buffers.v_copies, plan.v_panels, plan.v_panel, plan)


@gluon.jit
def _start_copies(
    descriptor,
    rows,
    head,
    slot,
    full,
    copies,
    PANELS: gl.constexpr,
    WIDTH: gl.constexpr,
    plan: gl.constexpr,
):
    CHUNKS: gl.constexpr = plan.chunks
    for i in gl.static_range(CHUNKS):
        for panel in gl.static_range(PANELS):
            place = [rows[i], head, panel * WIDTH]
            index = (slot * PANELS + panel) * plan.chunks + i
            start_copy(descriptor, place, full.index(slot), copies.index(index))


@gluon.jit
def attend(
    CONSUMER: gl.constexpr,
    pointers,
    buffers,
    barriers,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Computes the output of 64 rows of each tile, then writes rows of no tile.

    Where the next queries come in time (two ``q_slots``) the first logits of a tile are computed beside the last
    product of the tile before: only the end of a tile, dividing and storing, has no product of its own beside it.
    """
    cu_q_lens, sinks, decodes, decoded, decoded_lse, out, lse = pointers
    OVERLAP: gl.constexpr = plan.q_slots > 1
    count = 0
    turn = 0
    info = receive_tile(turn, buffers, barriers)
    if OVERLAP:
        more = info.head >= 0
        rows = load_rows(CONSUMER, info, sinks, plan, layouts)
        slot, rows = _receive_queries(CONSUMER, turn, more, info, rows, buffers, barriers, plan, layouts)
        weights, state = begin(
            CONSUMER, _queries_of(slot, buffers, plan), count, info, rows, more, buffers, barriers, plan, layouts
        )
        count += 1
    while info.head >= 0:
        if not OVERLAP:
            rows = load_rows(CONSUMER, info, sinks, plan, layouts)
            slot, rows = _receive_queries(CONSUMER, turn, True, info, rows, buffers, barriers, plan, layouts)
            weights, state = begin(
                CONSUMER,
                _queries_of(slot, buffers, plan),
                count,
                info,
                rows,
                True,
                buffers,
                barriers,
                plan,
                layouts,
            )
            count += 1
        acc = gl.full([_ROWS, plan.block_v], 0.0, gl.float32, layouts.out)
        carried = (acc, weights, state, count)
        carried = walk(
            CONSUMER, carried, info, _queries_of(slot, buffers, plan), rows, buffers, barriers, plan, layouts
        )
        acc, weights, state, count = carried
        # Not before: a thread has no registers for them while it walks.
        next_info = receive_tile(turn + 1, buffers, barriers)
        if OVERLAP:
            more = next_info.head >= 0
            next_rows = load_rows(CONSUMER, next_info, sinks, plan, layouts)
            next_slot, next_rows = _receive_queries(
                CONSUMER, turn + 1, more, next_info, next_rows, buffers, barriers, plan, layouts
            )
            # After the last tile nothing comes: what is left in the slots is multiplied, and the product is not used.
            acc, weights, next_state, _ = step(
                CONSUMER,
                (acc, weights, new_state(next_rows, plan, layouts), count),
                next_info.stop - 1,
                next_info,
                _queries_of(next_slot, buffers, plan),
                next_rows,
                more,
                True,
                buffers,
                barriers,
                plan,
                layouts,
            )
            count += 1
            _store_output(CONSUMER, acc, state, info, slot, out, lse, buffers, barriers, plan, layouts)
            state = next_state
            rows = next_rows
            slot = next_slot
        else:
            v_slot, _ = slot_of(count - 1, plan)
            acc = multiply_values(weights, v_slot, acc, buffers)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(barriers.v_empty.index(v_slot))
            _store_output(CONSUMER, acc, state, info, slot, out, lse, buffers, barriers, plan, layouts)
        info = next_info
        turn += 1
    _store_others(CONSUMER, cu_q_lens, decodes, decoded, decoded_lse, out, lse, plan)


@gluon.jit
def _receive_queries(
    CONSUMER: gl.constexpr, turn, more, info, rows, buffers, barriers, plan: gl.constexpr, layouts: gl.constexpr
):
    """Waits for the queries of the tile of ``turn``; their slot, and the rows with their factors. Or none come."""
    slot = turn % plan.q_slots * plan.consumers + CONSUMER
    mbarrier.wait(barriers.q_full.index(slot), turn // plan.q_slots & 1, pred=more)
    if plan.has_factors:
        factor = make_queries_float16(slot, load_scale(buffers.k_scales, info, plan), buffers, plan, layouts)
        rows = Rows(rows.position, rows.sink, rows.whole_begin, rows.whole_stop, factor)
    return slot, rows


@gluon.jit
def _queries_of(slot, buffers, plan: gl.constexpr):
    """The queries of a slot as they are multiplied."""
    tiles = buffers.float16_q if plan.has_factors else buffers.q
    return tiles.index(slot * plan.q_stride)


@gluon.jit
def _store_output(
    CONSUMER: gl.constexpr,
    acc,
    state,
    info,
    slot,
    out,
    lse,
    buffers,
    barriers,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Divides the output and stores it and the logsumexp; the slot of the queries is free then.

    The output passes through that slot, so that neighbouring threads write neighbouring bytes.
    """
    maximum, total = state
    total = gl.convert_layout(gl.sum(total, 1), gl.SliceLayout(1, layouts.logits))
    seen = total > 0
    some = gl.where(seen, total, 1.0)
    query, head, is_row = rows_of(CONSUMER, info, plan, gl.SliceLayout(1, layouts.logits))
    row_lse = gl.where(seen, (maximum + gl.log2(some)) * LN2, float("-inf"))
    gl.store(lse + query * plan.num_q_heads + head, row_lse, mask=is_row)
    factor = gl.where(seen, 1.0 / some, 0.0)
    if plan.has_factors:
        factor *= load_scale(buffers.v_scales, info, plan)
    factor = gl.convert_layout(factor, gl.SliceLayout(1, layouts.out))
    tile = buffers.out.index(slot * plan.out_stride)
    tile.store((acc * factor[:, None]).to(buffers.q.dtype))
    WIDE: gl.constexpr = row_layout(plan.block_v)
    values = tile.load(WIDE)
    fence_async_shared()
    mbarrier.arrive(barriers.q_empty.index(slot))
    query, head, is_row = rows_of(CONSUMER, info, plan, gl.SliceLayout(1, WIDE))
    column = gl.arange(0, plan.block_v, gl.SliceLayout(0, WIDE))
    rows = (query.to(gl.int64) * plan.num_q_heads + head) * plan.v_head_dim
    inside = is_row[:, None] & (column < plan.v_head_dim)[None, :]
    gl.store(out + rows[:, None] + column[None, :], values, mask=inside)


@gluon.jit
def _store_others(CONSUMER: gl.constexpr, cu_q_lens, decodes, decoded, decoded_lse, out, lse, plan: gl.constexpr):
    """Copies the rows that another launch decoded, and writes zeros and minus infinity behind the last sequence."""
    LAYOUT: gl.constexpr = row_layout(plan.block_v)
    copied = count_decoded(decodes)
    behind = gl.load(cu_q_lens + plan.batch)
    rows = (copied + gl.maximum(plan.tokens - behind, 0)) * plan.num_q_heads
    first = (gl.program_id(0) * plan.consumers + CONSUMER) * _ROWS
    for begin_row in range(first, rows, plan.num_programs * plan.consumers * _ROWS):
        row = begin_row + gl.arange(0, _ROWS, gl.SliceLayout(1, LAYOUT))
        is_row = row < rows
        is_copied = row < copied * plan.num_q_heads
        place = gl.where(is_copied, row, row + (behind - copied) * plan.num_q_heads)
        column = gl.arange(0, plan.block_v, gl.SliceLayout(0, LAYOUT))
        cells = place.to(gl.int64)[:, None] * plan.v_head_dim + column[None, :]
        inside = is_row[:, None] & (column < plan.v_head_dim)[None, :]
        values = gl.full([_ROWS, plan.block_v], 0.0, out.dtype.element_ty, LAYOUT)
        row_lse = gl.full([_ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, LAYOUT))
        if decoded is not None:
            values = gl.load(decoded + cells, mask=inside & is_copied[:, None], other=0.0)
            row_lse = gl.load(decoded_lse + place, mask=is_row & is_copied, other=float("-inf"))
        gl.store(out + cells, values, mask=inside)
        gl.store(lse + place, row_lse, mask=is_row)
