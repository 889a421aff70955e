"""Device code of the three partitions over lists: those of ``lang/gluon/attention/partitions.py``, with its parts.

A list is walked from its end: first the tiles that may need a mask, the last keys first. What ``TileInfo`` calls
``begin`` and ``end`` of the keys is here the number of further tiles and, less one, the first tile.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from attn_tune.kernels.lang.gluon.attention.partitions import (
    _load_kv_tile as load_kv_tile,
    _load_query_tile as load_query_tile,
    _load_rows_of as load_rows_of,
    _store_output as store_output,
)
from attn_tune.kernels.lang.gluon.attention.steps import (
    _corrected as corrected,
    begin,
    new_state,
    receive_queries,
    step,
)
from attn_tune.kernels.lang.gluon.attention.tiles import (
    TileInfo,
    load_tile_info,
    place_of,
    publish_tile_info,
    receive_tile_info,
    tile_info_of,
)
from attn_tune.kernels.lang.gluon.device import next_place

# Numbers of a row of the table of tiles.
FACTS = 4
_FACTS = gl.constexpr(FACTS)
_ROWS = gl.constexpr(64)
# A program takes its next tile from the queue with so many tiles of keys of this one left to copy.
_TAKEN_BEFORE = gl.constexpr(3)


@gluon.jit
def tile_at(place, facts, plan: gl.constexpr, static: gl.constexpr, listed: gl.constexpr):
    """``(tile or -1, its listed tiles of keys, the first of them)`` at a place of the queue.

    The queue goes through sections of heads, of each the tiles with most keys first.
    """
    heads: gl.constexpr = plan.heads_per_section
    rest = place % (heads * static.q_blocks)
    head = place // (heads * static.q_blocks) * heads + rest % heads
    # Beyond the end there is nothing to load.
    head = gl.minimum(head, plan.batch * static.num_q_heads - 1)
    lists = head // static.num_q_heads * listed.batch_step + head % static.num_q_heads * listed.head_step
    row = facts + (lists + rest // heads) * _FACTS
    tile = head * static.q_blocks + gl.load(row)
    return gl.where(place < plan.num_tiles, tile, -1), gl.load(row + 1), gl.load(row + 2)


@gluon.jit
def list_of(tile, tiles, static: gl.constexpr, listed: gl.constexpr):
    """The list of a tile of rows."""
    block, batch, head = place_of(tile, static)
    row = batch * listed.batch_step + head * listed.head_step + block
    return tiles + row.to(gl.int64) * listed.width


@gluon.jit
def load_info(found, ranges, lengths, plan: gl.constexpr, static: gl.constexpr):
    """Loads what is known of a tile, as ``tile_at`` found it."""
    tile, count, first = found
    return load_tile_info(tile, ranges, lengths, plan, static), count, first


@gluon.jit
def info_of(loaded, plan: gl.constexpr, static: gl.constexpr):
    """The facts that are published of a tile: which keys all rows see is known by their numbers."""
    stored, count, first = loaded
    info = tile_info_of(stored, plan, static)
    return TileInfo(
        info.tile,
        gl.maximum(count, 1) - 1,
        info.full_begin,
        info.full_end,
        first + 1,
        info.length,
        info.same_begin,
        info.same_end,
    )


@gluon.jit
def copy_tiles(
    descriptors, pointers, buffers, barriers, plan: gl.constexpr, static: gl.constexpr, listed: gl.constexpr
):
    """Copies queries, and listed keys and values, as far ahead as slots are free."""
    q_desc, k_desc, v_desc = descriptors
    tiles, facts, ranges, lengths, counter = pointers
    count = 0
    turn = 0
    found = tile_at(gl.program_id(0), facts, plan, static, listed)
    info = info_of(load_info(found, ranges, lengths, plan, static), plan, static)
    publish_tile_info(info, turn, buffers, barriers, static)
    while info.tile >= 0:
        block, batch, head = place_of(info.tile, static)
        own = list_of(info.tile, tiles, static, listed)
        following = gl.load(own + gl.maximum(info.begin - 1, 0))
        load_query_tile(q_desc, batch, block * static.block_q, head, turn, buffers, barriers, plan, static)
        kv_descriptors = (k_desc, v_desc, batch, head // static.group_size)
        load_kv_tile(kv_descriptors, info.end - 1, count, buffers, barriers, plan, static)
        count += 1
        early = gl.maximum(info.begin - _TAKEN_BEFORE, 0)
        for j in range(early):
            key_block = following
            # The number of the next tile of keys is on its way while this one waits for its slot.
            following = gl.load(own + gl.maximum(info.begin - 2 - j, 0))
            load_kv_tile(kv_descriptors, key_block, count, buffers, barriers, plan, static)
            count += 1
        # Late, so that the answer just comes in time: no other program can compute a tile that waits here.
        found = tile_at(plan.num_programs + next_place(counter), facts, plan, static, listed)
        ahead = load_info(found, ranges, lengths, plan, static)
        for j in range(early, info.begin):
            key_block = following
            following = gl.load(own + gl.maximum(info.begin - 2 - j, 0))
            load_kv_tile(kv_descriptors, key_block, count, buffers, barriers, plan, static)
            count += 1
        next_info = info_of(ahead, plan, static)
        publish_tile_info(next_info, turn + 1, buffers, barriers, static)
        info = next_info
        turn += 1


@gluon.jit
def attend(
    CONSUMER: gl.constexpr,
    out_desc,
    pointers,
    buffers,
    barriers,
    plan: gl.constexpr,
    static: gl.constexpr,
    listed: gl.constexpr,
    layouts: gl.constexpr,
):
    """Computes the output of 64 rows of each tile; the next one's first logits beside the last product of this one."""
    tiles, q_segments, kv_segments, lse = pointers
    row_pointers = (q_segments, lse, (lse, lse, lse))
    fixed = (kv_segments, buffers, barriers)
    count = 0
    turn = 0
    info = receive_tile_info(turn, buffers, barriers, static)
    rows = load_rows_of(CONSUMER, info, row_pointers, plan, static, layouts)
    queries = receive_queries(CONSUMER, turn, True, buffers, barriers, plan, static, layouts)
    weights, state = begin(CONSUMER, queries, count, info, rows, fixed, plan, static, layouts)
    count += 1
    while info.tile >= 0:
        acc = gl.zeros([_ROWS, static.head_dim], gl.float32, layouts.out)
        own = (queries, info, rows)
        own_list = list_of(info.tile, tiles, static, listed)
        carried = (acc, weights, state, count)
        carried = walk(CONSUMER, carried, own_list, own, fixed, plan, static, layouts)
        acc, weights, state, count = carried
        if not plan.q_in_registers:
            # The last logits are done: other queries may come.
            mbarrier.arrive(barriers.q_empty.index(queries))
        next_info = receive_tile_info(turn + 1, buffers, barriers, static)
        next_rows = load_rows_of(CONSUMER, next_info, row_pointers, plan, static, layouts)
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
        store_output(CONSUMER, acc, state, info, out_desc, lse, buffers, plan, static, layouts)
        state = next_state
        rows = next_rows
        info = next_info
        turn += 1
    tma.store_wait(0)


@gluon.jit
def walk(
    CONSUMER: gl.constexpr,
    carried,
    own_list,
    own,
    fixed,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """The steps of the tiles of a list before its last one, from the end. Their numbers are read for masks only."""
    ASKS: gl.constexpr = static.has_segments or plan.other_keys != "none"
    _, info, _ = own
    following = info.begin
    if ASKS:
        following = gl.load(own_list + gl.maximum(info.begin - 1, 0))
    for j in range(info.begin):
        block = following
        if ASKS:
            following = gl.load(own_list + gl.maximum(info.begin - 2 - j, 0))
        acc, weights, state, count = carried
        acc, weights, state, correction = step(
            CONSUMER, carried, block, own, fixed, True, plan.other_keys, plan, static, layouts
        )
        acc = corrected(acc, correction, plan, layouts)
        carried = (acc, weights, state, count + 1)
    return carried
