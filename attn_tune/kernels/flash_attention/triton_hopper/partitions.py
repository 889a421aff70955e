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
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attn_tune.kernels.flash_attention.triton_hopper.config import CONSUMERS, ROWS
from attn_tune.kernels.flash_attention.triton_hopper.logits import LOG2E, load_rows, weigh
from attn_tune.kernels.flash_attention.triton_hopper.tiles import (
    key_blocks,
    length_of,
    own_tiles,
    place_of,
)

LN2 = gl.constexpr(0.6931471805599453)
_ROWS = gl.constexpr(ROWS)
_CONSUMERS = gl.constexpr(CONSUMERS)


class Room(NamedTuple):
    """Shared memory: queries and output ``[consumers, 1, 64, H]``, keys and values ``[stages, 1, block_k, H]``.

    The output may have the room of the queries.
    """

    q: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    out: gl.shared_memory_descriptor


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


@gluon.jit
def copy_tiles(
    descriptors,
    schedule,
    ranges,
    lengths,
    room,
    bars,
    plan: gl.constexpr,
    static: gl.constexpr,
):
    """Brings queries, keys and values, as far ahead as there is room; keys from the last to the first."""
    q_desc, k_desc, v_desc = descriptors
    count = 0
    turns, tiles = own_tiles(schedule, plan)
    for turn in range(turns):
        tile = gl.load(tiles + turn)
        block, batch, head = place_of(tile, static)
        length = length_of(tile, lengths, plan, static)
        begin, _, _, end = key_blocks(block, batch, ranges, length, plan, static)
        column = head * static.head_dim
        for i in gl.static_range(_CONSUMERS):
            mbarrier.wait(bars.q_empty.index(i), (turn & 1) ^ 1)
            mbarrier.expect(bars.q_full.index(i), q_desc.block_type.nbytes)
            row = block * static.block_q + i * _ROWS
            tma.async_load(q_desc, [batch, row, column], bars.q_full.index(i), room.q.index(i))
        column = head // static.group_size * static.head_dim
        for j in range(end - begin):
            row = (end - 1 - j) * static.block_k
            slot = count % plan.stages
            phase = (count // plan.stages) & 1
            mbarrier.wait(bars.k_empty.index(slot), phase ^ 1)
            mbarrier.expect(bars.k_full.index(slot), k_desc.block_type.nbytes)
            tma.async_load(
                k_desc, [batch, row, column], bars.k_full.index(slot), room.k.index(slot)
            )
            mbarrier.wait(bars.v_empty.index(slot), phase ^ 1)
            mbarrier.expect(bars.v_full.index(slot), v_desc.block_type.nbytes)
            tma.async_load(
                v_desc, [batch, row, column], bars.v_full.index(slot), room.v.index(slot)
            )
            count += 1


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
    """64 rows of each tile: FlashAttention-3's pipeline within a group of warps (arXiv 2407.08608, section 3.2).

    The logits of one tile of keys are computed while the weights of the one before are multiplied with their values,
    and the softmax of the first runs beside the second product.
    """
    schedule, ranges, lengths, q_segments, kv_segments, sinks, dropout, lse = pointers
    count = 0
    q_tile = room.q.index(CONSUMER).reshape([_ROWS, static.head_dim])
    out_slot = room.out.index(CONSUMER)
    row_layout: gl.constexpr = gl.SliceLayout(1, layouts.logits)
    turns, tiles = own_tiles(schedule, plan)
    tile = gl.load(tiles)
    next_length = length_of(tile, lengths, plan, static)
    for turn in range(turns):
        block, batch, head = place_of(tile, static)
        length = next_length
        # Asked for a tile ahead, so that nobody waits for it.
        tile = gl.load(tiles + turn + 1, mask=turn + 1 < turns, other=0)
        begin, full_begin, full_end, end = key_blocks(block, batch, ranges, length, plan, static)
        first = block * static.block_q + CONSUMER * _ROWS
        rows = load_rows(first, batch, head, q_segments, dropout, layouts.logits, static)
        maximum = gl.full([_ROWS], float("-inf"), gl.float32, row_layout)
        total = gl.zeros([_ROWS], gl.float32, row_layout)
        if plan.has_sinks:
            # The sink is the first logit seen: it joins the sum once, whatever the tiles.
            sink = gl.load(sinks + head) * LOG2E
            maximum = gl.zeros([_ROWS], gl.float32, row_layout) + sink
            total += gl.where(sink == float("-inf"), 0.0, 1.0)
        acc = gl.zeros([_ROWS, static.head_dim], gl.float32, layouts.out)

        mbarrier.wait(bars.q_full.index(CONSUMER), turn & 1)
        slot = count % plan.stages
        phase = (count // plan.stages) & 1
        mbarrier.wait(bars.k_full.index(slot), phase)
        _await_turn(CONSUMER, count, bars, plan)
        product = _multiply_keys(q_tile, room.k.index(slot), layouts, static)
        _pass_turn(CONSUMER, bars, plan)
        product = warpgroup_mma_wait(0, deps=[product])
        mbarrier.arrive(bars.k_empty.index(slot))
        start = (end - 1) * static.block_k
        weights, state, _ = weigh(
            product,
            (maximum, total),
            rows,
            start,
            batch,
            length,
            kv_segments,
            True,
            layouts.logits,
            plan,
            static,
        )
        weights = gl.convert_layout(weights.to(room.k.dtype), layouts.weights)
        mbarrier.wait(bars.v_full.index(slot), phase)
        count += 1

        # From the last tile of keys to the first: what an edge crosses, what all rows see, what another edge crosses.
        todo = end - 1
        stop = gl.minimum(gl.maximum(full_end, full_begin), todo)
        fixed = (q_tile, rows, batch, length, kv_segments, room, bars)
        carried = (acc, weights, state, count)
        carried = _walk(CONSUMER, carried, todo, stop, fixed, True, plan, static, layouts)
        todo = stop
        stop = gl.minimum(full_begin, todo)
        carried = _walk(CONSUMER, carried, todo, stop, fixed, False, plan, static, layouts)
        if static.skips_left or static.has_ranges:
            carried = _walk(CONSUMER, carried, stop, begin, fixed, True, plan, static, layouts)
        acc, weights, state, count = carried
        maximum, total = state
        next_length = length_of(tile, lengths, plan, static)
        if plan.own_room:
            # The last logits are done: the next queries may come.
            mbarrier.arrive(bars.q_empty.index(CONSUMER))

        slot = (count - 1) % plan.stages
        acc = _multiply_values(weights, room.v.index(slot), acc, static)
        seen = total > 0
        some = gl.where(seen, total, 1.0)
        index = first + gl.arange(0, _ROWS, row_layout)
        row_lse = gl.where(seen, (maximum + gl.log2(some)) * LN2, float("-inf"))
        lse_rows = lse + (batch * static.num_q_heads + head).to(gl.int64) * static.q_len
        gl.store(lse_rows + index, row_lse, mask=index < static.q_len)
        factor = gl.where(seen, static.keep_scale / some, 0.0)
        factor = gl.convert_layout(factor, gl.SliceLayout(1, layouts.out))
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(bars.v_empty.index(slot))
        if plan.own_room:
            tma.store_wait(0)
        out_tile = out_slot.reshape([_ROWS, static.head_dim])
        out_tile.store((acc * factor[:, None]).to(room.q.dtype))
        fence_async_shared()
        tma.async_store(out_desc, [batch, first, head * static.head_dim], out_slot)
        if not plan.own_room:
            tma.store_wait(0)
            mbarrier.arrive(bars.q_empty.index(CONSUMER))
    if plan.own_room:
        tma.store_wait(0)


@gluon.jit
def _await_turn(CONSUMER: gl.constexpr, count, bars, plan: gl.constexpr):
    """Both groups take equally many steps; the first waits for the other's step before, the second for the same one."""
    if plan.ping_pong:
        mbarrier.wait(bars.turn.index(CONSUMER), (count & 1) ^ (1 - CONSUMER))


@gluon.jit
def _pass_turn(CONSUMER: gl.constexpr, bars, plan: gl.constexpr):
    if plan.ping_pong:
        mbarrier.arrive(bars.turn.index(1 - CONSUMER))


@gluon.jit
def _multiply_keys(q_tile, k_slot, layouts: gl.constexpr, static: gl.constexpr):
    """q.k of one tile, under way."""
    k_tile = k_slot.reshape([static.block_k, static.head_dim])
    zeros = gl.zeros([_ROWS, static.block_k], gl.float32, layouts.logits)
    return warpgroup_mma(q_tile, k_tile.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def _multiply_values(weights, v_slot, acc, static: gl.constexpr):
    """The weighted sum of one tile's values added to ``acc``, under way."""
    v_tile = v_slot.reshape([static.block_k, static.head_dim])
    return warpgroup_mma(weights, v_tile, acc, is_async=True)


@gluon.jit
def _walk(
    CONSUMER: gl.constexpr,
    carried,
    todo,
    stop,
    fixed,
    EDGE: gl.constexpr,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """The steps of the tiles of keys from ``todo - 1`` down to ``stop``."""
    for j in range(todo - stop):
        carried = _step(CONSUMER, carried, todo - 1 - j, fixed, EDGE, plan, static, layouts)
    return carried


@gluon.jit
def _step(
    CONSUMER: gl.constexpr,
    carried,
    block,
    fixed,
    EDGE: gl.constexpr,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """The logits of tile ``block`` of the keys, and the product that the step before left to do."""
    q_tile, rows, batch, length, kv_segments, room, bars = fixed
    acc, weights, state, count = carried
    slot = count % plan.stages
    phase = (count // plan.stages) & 1
    last_slot = (count - 1) % plan.stages
    mbarrier.wait(bars.k_full.index(slot), phase)
    _await_turn(CONSUMER, count, bars, plan)
    product = _multiply_keys(q_tile, room.k.index(slot), layouts, static)
    acc = _multiply_values(weights, room.v.index(last_slot), acc, static)
    _pass_turn(CONSUMER, bars, plan)
    product = warpgroup_mma_wait(1, deps=[product])
    mbarrier.arrive(bars.k_empty.index(slot))
    start = block * static.block_k
    new_weights, state, correction = weigh(
        product, state, rows, start, batch, length, kv_segments, EDGE, layouts.logits, plan, static
    )
    # These values are wanted by the next step. They are waited for here because no instruction is moved over a loop:
    # without one ptxas has the exponentials come after the product that they can run beside.
    mbarrier.wait(bars.v_full.index(slot), phase)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(bars.v_empty.index(last_slot))
    weights = gl.convert_layout(new_weights.to(room.k.dtype), layouts.weights)
    acc = acc * gl.convert_layout(correction, gl.SliceLayout(1, layouts.out))[:, None]
    return acc, weights, state, count + 1
