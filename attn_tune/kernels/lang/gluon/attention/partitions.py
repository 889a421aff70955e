"""Device code of the three partitions: one warp that copies, and two groups of warps that multiply."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from attn_tune.kernels.lang.gluon.attention.config import CONSUMERS, ROWS
from attn_tune.kernels.lang.gluon.attention.logits import load_rows, load_seeds
from attn_tune.kernels.lang.gluon.attention.steps import (
    begin,
    multiply_values,
    new_state,
    receive_queries,
    slot_of,
    step,
    walk,
)
from attn_tune.kernels.lang.gluon.attention.tiles import (
    load_tile_info,
    place_of,
    publish_tile_info,
    receive_tile_info,
    scheduled_tile,
    tile_at,
    tile_info_of,
)
from attn_tune.kernels.lang.gluon.device import next_place

LN2 = gl.constexpr(0.6931471805599453)
_ROWS = gl.constexpr(ROWS)
_CONSUMERS = gl.constexpr(CONSUMERS)
# A program takes its next tile from a queue with so many tiles of keys of this one left to copy.
_TAKEN_BEFORE = gl.constexpr(2)


class Buffers(NamedTuple):
    """The slots in shared memory.

    Attributes:
      q: queries, ``[q_slots * consumers, 1, 64, H]``.
      k, v: keys and values, ``[stages, 1, block_k, H]``.
      out: the output, ``[consumers, 1, 64, H]``; the slots of the queries unless ``Plan.own_buffer``.
      info: the published ``TileInfo`` of two tiles, one number each.
      ids: segments of keys, ``[consumers, block_k]``.
    """

    q: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    out: gl.shared_memory_descriptor
    info: gl.shared_memory_descriptor
    ids: gl.shared_memory_descriptor


class Barriers(NamedTuple):
    """One barrier a slot: ``full`` when its copy has come, ``empty`` when all who read it are done.

    ``turn`` has one for each group of warps that multiply: the other one's products of this step are under way.
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


@gluon.jit
def copy_tiles(
    descriptors,
    pointers,
    buffers,
    barriers,
    plan: gl.constexpr,
    static: gl.constexpr,
):
    """Copies queries, keys and values as far ahead as slots are free, keys from the last to the first."""
    q_desc, k_desc, v_desc = descriptors
    schedule, counter, ranges, lengths = pointers
    count = 0
    turn = 0
    if plan.dynamic:
        number = tile_at(gl.program_id(0), plan, static)
    else:
        # A tile of a schedule is looked up a tile ahead, so that no warp waits for it.
        number = scheduled_tile(schedule, 0, plan)
        ahead = scheduled_tile(schedule, 1, plan)
    info = tile_info_of(load_tile_info(number, ranges, lengths, plan, static), plan, static)
    if not plan.dynamic:
        stored = load_tile_info(ahead, ranges, lengths, plan, static)
    publish_tile_info(info, turn, buffers, barriers, static)
    while info.tile >= 0:
        block, batch, head = place_of(info.tile, static)
        row = block * static.block_q
        _load_query_tile(q_desc, batch, row, head, turn, buffers, barriers, plan, static)
        kv_descriptors = (k_desc, v_desc, batch, head // static.group_size)
        _load_kv_tile(kv_descriptors, info.end - 1, count, buffers, barriers, plan, static)
        count += 1
        if plan.dynamic:
            rest = info.end - 1 - info.begin
            # Late, so that the answer just comes in time: no other program can compute a tile that waits here.
            early = gl.maximum(rest - _TAKEN_BEFORE, 0)
            for j in range(early):
                _load_kv_tile(kv_descriptors, info.end - 2 - j, count, buffers, barriers, plan, static)
                count += 1
            taken = tile_at(plan.num_programs + next_place(counter), plan, static)
            found = load_tile_info(taken, ranges, lengths, plan, static)
            for j in range(early, rest):
                _load_kv_tile(kv_descriptors, info.end - 2 - j, count, buffers, barriers, plan, static)
                count += 1
            next_info = tile_info_of(found, plan, static)
            publish_tile_info(next_info, turn + 1, buffers, barriers, static)
        else:
            # Only now, when what the others need first is on its way, is the next tile waited for.
            next_info = tile_info_of(stored, plan, static)
            publish_tile_info(next_info, turn + 1, buffers, barriers, static)
            ahead = scheduled_tile(schedule, turn + 2, plan)
            stored = load_tile_info(ahead, ranges, lengths, plan, static)
            for j in range(info.end - 1 - info.begin):
                _load_kv_tile(kv_descriptors, info.end - 2 - j, count, buffers, barriers, plan, static)
                count += 1
        info = next_info
        turn += 1


@gluon.jit
def _load_query_tile(q_desc, batch, row, head, turn, buffers, barriers, plan: gl.constexpr, static: gl.constexpr):
    for i in gl.static_range(_CONSUMERS):
        slot = turn % plan.q_slots * _CONSUMERS + i
        mbarrier.wait(barriers.q_empty.index(slot), (turn // plan.q_slots & 1) ^ 1)
        mbarrier.expect(barriers.q_full.index(slot), q_desc.block_type.nbytes)
        place = [batch, row + i * _ROWS, head * static.head_dim]
        tma.async_load(q_desc, place, barriers.q_full.index(slot), buffers.q.index(slot))


@gluon.jit
def _load_kv_tile(kv_descriptors, block, count, buffers, barriers, plan: gl.constexpr, static: gl.constexpr):
    """Waits for a free slot of keys, then of values, and starts the copy of one tile into each."""
    k_desc, v_desc, batch, head = kv_descriptors
    place = [batch, block * static.block_k, head * static.head_dim]
    slot, phase = slot_of(count, plan)
    mbarrier.wait(barriers.k_empty.index(slot), phase ^ 1)
    mbarrier.expect(barriers.k_full.index(slot), k_desc.block_type.nbytes)
    tma.async_load(k_desc, place, barriers.k_full.index(slot), buffers.k.index(slot))
    mbarrier.wait(barriers.v_empty.index(slot), phase ^ 1)
    mbarrier.expect(barriers.v_full.index(slot), v_desc.block_type.nbytes)
    tma.async_load(v_desc, place, barriers.v_full.index(slot), buffers.v.index(slot))


@gluon.jit
def attend(
    CONSUMER: gl.constexpr,
    out_desc,
    pointers,
    buffers,
    barriers,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """Computes the output of 64 rows of each tile.

    Where the next queries come in time (``plan.overlap``) the first logits of a tile are computed beside the last
    product of the tile before: only the end of a tile, dividing and storing, has no product of its own beside it.
    """
    q_segments, kv_segments, sinks, dropout, lse = pointers
    row_pointers = (q_segments, sinks, load_seeds(dropout, static))
    fixed = (kv_segments, buffers, barriers)
    count = 0
    turn = 0
    info = receive_tile_info(turn, buffers, barriers, static)
    if plan.overlap:
        rows = _load_rows_of(CONSUMER, info, row_pointers, plan, static, layouts)
        queries = receive_queries(CONSUMER, turn, True, buffers, barriers, plan, static, layouts)
        weights, state = begin(CONSUMER, queries, count, info, rows, fixed, plan, static, layouts)
        count += 1
    while info.tile >= 0:
        if plan.overlap:
            if not plan.dynamic:
                # Loaded a tile ahead, so that no warp waits for them. From a queue the next tile is not taken yet.
                next_info = receive_tile_info(turn + 1, buffers, barriers, static)
                next_rows = _load_rows_of(CONSUMER, next_info, row_pointers, plan, static, layouts)
        else:
            rows = _load_rows_of(CONSUMER, info, row_pointers, plan, static, layouts)
            queries = receive_queries(CONSUMER, turn, True, buffers, barriers, plan, static, layouts)
            weights, state = begin(CONSUMER, queries, count, info, rows, fixed, plan, static, layouts)
            count += 1
        acc = gl.zeros([_ROWS, static.head_dim], gl.float32, layouts.out)
        own = (queries, info, rows)
        carried = (acc, weights, state, count)
        # From the last tile of keys to the first.
        todo = info.end - 1
        carried = walk(CONSUMER, carried, todo, info.begin, own, fixed, plan, static, layouts)
        acc, weights, state, count = carried
        if plan.own_buffer and not plan.q_in_registers:
            # The last logits are done: other queries may come.
            mbarrier.arrive(barriers.q_empty.index(queries))
        if plan.overlap:
            if plan.dynamic:
                next_info = receive_tile_info(turn + 1, buffers, barriers, static)
                next_rows = _load_rows_of(CONSUMER, next_info, row_pointers, plan, static, layouts)
            more = next_info.tile >= 0
            queries = receive_queries(CONSUMER, turn + 1, more, buffers, barriers, plan, static, layouts)
            own = (queries, next_info, next_rows)
            # After the last tile nothing comes: what is left in the slots is multiplied, and the product is not used.
            acc, weights, next_state, _ = step(
                CONSUMER,
                (acc, weights, new_state(next_rows, plan, static, layouts), count),
                next_info.end - 1,
                own,
                fixed,
                more,
                plan.last_keys,
                plan,
                static,
                layouts,
            )
            count += 1
            _store_output(CONSUMER, acc, state, info, out_desc, lse, buffers, plan, static, layouts)
            state = next_state
            rows = next_rows
        else:
            slot, _ = slot_of(count - 1, plan)
            acc = multiply_values(weights, buffers.v.index(slot), acc, static)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(barriers.v_empty.index(slot))
            _store_output(CONSUMER, acc, state, info, out_desc, lse, buffers, plan, static, layouts)
            # Not before: a thread has no registers for them while it walks.
            next_info = receive_tile_info(turn + 1, buffers, barriers, static)
            if not plan.own_buffer:
                tma.store_wait(0)
                mbarrier.arrive(barriers.q_empty.index(queries))
        info = next_info
        turn += 1
    if plan.own_buffer:
        tma.store_wait(0)


@gluon.jit
def _load_rows_of(
    CONSUMER: gl.constexpr,
    info,
    pointers,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    block, batch, head = place_of(info.tile, static)
    first = block * static.block_q + CONSUMER * _ROWS
    return load_rows(first, batch, head, pointers, layouts.logits, plan, static)


@gluon.jit
def _store_output(
    CONSUMER: gl.constexpr,
    acc,
    state,
    info,
    out_desc,
    lse,
    buffers,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """Divides the output, starts its copy to device memory, and stores the logsumexp."""
    block, batch, head = place_of(info.tile, static)
    first = block * static.block_q + CONSUMER * _ROWS
    maximum, total = state
    total = gl.convert_layout(gl.sum(total, 1), gl.SliceLayout(1, layouts.logits))
    seen = total > 0
    some = gl.where(seen, total, 1.0)
    index = first + gl.arange(0, _ROWS, gl.SliceLayout(1, layouts.logits))
    row_lse = gl.where(seen, (maximum + gl.log2(some)) * LN2, float("-inf"))
    lse_rows = lse + (batch * static.num_q_heads + head).to(gl.int64) * static.q_len
    gl.store(lse_rows + index, row_lse, mask=index < static.q_len)
    factor = gl.where(seen, static.keep_scale / some, 0.0)
    factor = gl.convert_layout(factor, gl.SliceLayout(1, layouts.out))
    if plan.own_buffer:
        # The output of the tile before must have left.
        tma.store_wait(0)
    out_slot = buffers.out.index(CONSUMER)
    out_tile = out_slot.reshape([_ROWS, static.head_dim])
    out_tile.store((acc * factor[:, None]).to(buffers.q.dtype))
    fence_async_shared()
    tma.async_store(out_desc, [batch, first, head * static.head_dim], out_slot)
