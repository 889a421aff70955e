"""Device code: the warps that copy, and the two groups of warps that multiply."""

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

from attn_tune.kernels.flash_attention.triton_hopper.config import CONSUMERS, ROWS
from attn_tune.kernels.flash_attention.triton_hopper.logits import load_rows, load_seeds
from attn_tune.kernels.flash_attention.triton_hopper.steps import (
    begin,
    multiply_values,
    new_state,
    slot_of,
    step,
    take_queries,
    walk,
)
from attn_tune.kernels.flash_attention.triton_hopper.tiles import (
    facts_of,
    hear,
    look_up,
    place_of,
    scheduled_tile,
    tell,
    tile_at,
)

LN2 = gl.constexpr(0.6931471805599453)
_ROWS = gl.constexpr(ROWS)
_CONSUMERS = gl.constexpr(CONSUMERS)


class Room(NamedTuple):
    """Shared memory: keys and values ``[stages, 1, block_k, H]``, output ``[consumers, 1, 64, H]`` and queries.

    Those have one or two times the size of the output, which may have the room of the queries. ``facts``: what is told
    of tiles. ``ids``: segments of keys ``[consumers, block_k]``.
    """

    q: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    out: gl.shared_memory_descriptor
    facts: gl.shared_memory_descriptor
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
    room,
    bars,
    plan: gl.constexpr,
    static: gl.constexpr,
):
    """Brings queries, keys and values, as far ahead as there is room; keys from the last to the first."""
    q_desc, k_desc, v_desc = descriptors
    schedule, counter, ranges, lengths = pointers
    count = 0
    turn = 0
    # A tile is looked up a tile ahead, so that nobody waits for it. No more are taken from a queue: at its end there
    # would be nothing left for others.
    if plan.dynamic:
        number = tile_at(gl.program_id(0), plan, static)
        ahead = tile_at(plan.num_programs + _take(counter), plan, static)
    else:
        number = scheduled_tile(schedule, 0, plan)
        ahead = scheduled_tile(schedule, 1, plan)
    facts = facts_of(look_up(number, ranges, lengths, plan, static), plan, static)
    stored = look_up(ahead, ranges, lengths, plan, static)
    tell(facts, turn, room, bars, static)
    while facts.tile >= 0:
        block, batch, head = place_of(facts.tile, static)
        row = block * static.block_q
        _bring_queries(q_desc, batch, row, head, turn, room, bars, plan, static)
        keys_of = (k_desc, v_desc, batch, head // static.group_size)
        _bring_keys(keys_of, facts.end - 1, count, room, bars, plan, static)
        count += 1
        # Only now, when what the others need first is on its way, is the next tile waited for.
        next_facts = facts_of(stored, plan, static)
        tell(next_facts, turn + 1, room, bars, static)
        if not plan.dynamic:
            ahead = scheduled_tile(schedule, turn + 2, plan)
            stored = look_up(ahead, ranges, lengths, plan, static)
        for j in range(facts.end - 1 - facts.begin):
            _bring_keys(keys_of, facts.end - 2 - j, count, room, bars, plan, static)
            count += 1
        if plan.dynamic:
            # This is waited for: all keys of the tile at hand are on their way.
            ahead = tile_at(plan.num_programs + _take(counter), plan, static)
            stored = look_up(ahead, ranges, lengths, plan, static)
        facts = next_facts
        turn += 1


@gluon.jit
def _bring_queries(
    q_desc, batch, row, head, turn, room, bars, plan: gl.constexpr, static: gl.constexpr
):
    for i in gl.static_range(_CONSUMERS):
        slot = turn % plan.q_slots * _CONSUMERS + i
        mbarrier.wait(bars.q_empty.index(slot), (turn // plan.q_slots & 1) ^ 1)
        mbarrier.expect(bars.q_full.index(slot), q_desc.block_type.nbytes)
        place = [batch, row + i * _ROWS, head * static.head_dim]
        tma.async_load(q_desc, place, bars.q_full.index(slot), room.q.index(slot))


@gluon.jit
def _bring_keys(keys_of, block, count, room, bars, plan: gl.constexpr, static: gl.constexpr):
    """One tile of keys and of values."""
    k_desc, v_desc, batch, head = keys_of
    place = [batch, block * static.block_k, head * static.head_dim]
    slot, phase = slot_of(count, plan)
    mbarrier.wait(bars.k_empty.index(slot), phase ^ 1)
    mbarrier.expect(bars.k_full.index(slot), k_desc.block_type.nbytes)
    tma.async_load(k_desc, place, bars.k_full.index(slot), room.k.index(slot))
    mbarrier.wait(bars.v_empty.index(slot), phase ^ 1)
    mbarrier.expect(bars.v_full.index(slot), v_desc.block_type.nbytes)
    tma.async_load(v_desc, place, bars.v_full.index(slot), room.v.index(slot))


@gluon.jit
def _take(counter):
    """The next number of the queue. Nothing else is ordered by it."""
    return gl.atomic_add(counter, 1, sem="relaxed")


@gluon.jit
def attend(
    CONSUMER: gl.constexpr,
    out_desc,
    pointers,
    room,
    bars,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """64 rows of each tile.

    Where the next queries come in time (``plan.overlap``) the first logits of a tile are computed beside the last
    product of the tile before: only the end of a tile, dividing and storing, has no product of its own beside it.
    """
    q_segments, kv_segments, sinks, dropout, lse = pointers
    row_pointers = (q_segments, sinks, load_seeds(dropout, static))
    fixed = (kv_segments, room, bars)
    count = 0
    turn = 0
    facts = hear(turn, room, bars, static)
    if plan.overlap:
        rows = _rows_of(CONSUMER, facts, row_pointers, plan, static, layouts)
        queries = take_queries(CONSUMER, turn, True, room, bars, plan, static, layouts)
        weights, state = begin(CONSUMER, queries, count, facts, rows, fixed, plan, static, layouts)
        count += 1
    while facts.tile >= 0:
        if plan.overlap:
            # Asked for a tile ahead, so that nobody waits for them.
            next_facts = hear(turn + 1, room, bars, static)
            next_rows = _rows_of(CONSUMER, next_facts, row_pointers, plan, static, layouts)
        else:
            rows = _rows_of(CONSUMER, facts, row_pointers, plan, static, layouts)
            queries = take_queries(CONSUMER, turn, True, room, bars, plan, static, layouts)
            weights, state = begin(
                CONSUMER, queries, count, facts, rows, fixed, plan, static, layouts
            )
            count += 1
        acc = gl.zeros([_ROWS, static.head_dim], gl.float32, layouts.out)
        own = (queries, facts, rows)
        carried = (acc, weights, state, count)
        # From the last tile of keys to the first.
        todo = facts.end - 1
        carried = walk(CONSUMER, carried, todo, facts.begin, own, fixed, plan, static, layouts)
        acc, weights, state, count = carried
        if plan.own_room and not plan.q_in_registers:
            # The last logits are done: other queries may come.
            mbarrier.arrive(bars.q_empty.index(queries))
        if plan.overlap:
            more = next_facts.tile >= 0
            queries = take_queries(CONSUMER, turn + 1, more, room, bars, plan, static, layouts)
            own = (queries, next_facts, next_rows)
            # After the last tile nothing comes: what is left in the room is multiplied, and nobody reads the product.
            acc, weights, next_state, _ = step(
                CONSUMER,
                (acc, weights, new_state(next_rows, plan, static, layouts), count),
                next_facts.end - 1,
                own,
                fixed,
                more,
                plan.last_keys,
                plan,
                static,
                layouts,
            )
            count += 1
            _finish(CONSUMER, acc, state, facts, out_desc, lse, room, plan, static, layouts)
            state = next_state
            rows = next_rows
        else:
            slot, _ = slot_of(count - 1, plan)
            acc = multiply_values(weights, room.v.index(slot), acc, static)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(bars.v_empty.index(slot))
            _finish(CONSUMER, acc, state, facts, out_desc, lse, room, plan, static, layouts)
            # Not before: a thread has no registers for them while it walks.
            next_facts = hear(turn + 1, room, bars, static)
            if not plan.own_room:
                tma.store_wait(0)
                mbarrier.arrive(bars.q_empty.index(queries))
        facts = next_facts
        turn += 1
    if plan.own_room:
        tma.store_wait(0)


@gluon.jit
def _rows_of(
    CONSUMER: gl.constexpr,
    facts,
    pointers,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    block, batch, head = place_of(facts.tile, static)
    first = block * static.block_q + CONSUMER * _ROWS
    return load_rows(first, batch, head, pointers, layouts.logits, plan, static)


@gluon.jit
def _finish(
    CONSUMER: gl.constexpr,
    acc,
    state,
    facts,
    out_desc,
    lse,
    room,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """The output is divided and on its way; the logsumexp is stored."""
    block, batch, head = place_of(facts.tile, static)
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
    if plan.own_room:
        # The output of the tile before must have left.
        tma.store_wait(0)
    out_slot = room.out.index(CONSUMER)
    out_tile = out_slot.reshape([_ROWS, static.head_dim])
    out_tile.store((acc * factor[:, None]).to(room.q.dtype))
    fence_async_shared()
    tma.async_store(out_desc, [batch, first, head * static.head_dim], out_slot)
