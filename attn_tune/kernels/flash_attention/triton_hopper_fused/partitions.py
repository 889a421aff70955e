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

from attn_tune.kernels.flash_attention.triton_hopper_fused.config import CONSUMERS, ROWS, WARPS
from attn_tune.kernels.flash_attention.triton_hopper_fused.logits import load_columns, load_seeds
from attn_tune.kernels.flash_attention.triton_hopper_fused.products import multiply_keys
from attn_tune.kernels.flash_attention.triton_hopper_fused.steps import (
    add_last,
    differentiate_late,
    differentiate_rows,
)
from attn_tune.kernels.flash_attention.triton_hopper_fused.tiles import (
    load_bounds,
    place_of,
    publish_place,
    receive_place,
    slot_of,
    steps_of,
    walk_of,
)
from attn_tune.kernels.lang.gluon.device import next_place
from attn_tune.kernels.lang.gluon.padding import zero_rows

_ROWS = gl.constexpr(ROWS)
_CONSUMERS = gl.constexpr(CONSUMERS)
_WARPS = gl.constexpr(WARPS)
# With `takes_late` a program takes its next tile of keys with so many tiles of rows of this one left to copy.
_TAKEN_BEFORE = gl.constexpr(2)


class Buffers(NamedTuple):
    """The slots in shared memory, and other views of the same bytes.

    Attributes:
      k, v: keys and values, ``[key_tiles, 1, 64, H]``.
      k_panels: the keys in panels of 64 columns, ``[..., 64, 64]``.
      out: where dv, then dk leave, in the room of v, ``[consumers, 1, 64, width]``.
      q, dout: queries and the output's gradient, ``[stages * row_tiles, 1, rows, H]``, each its own stages.
      q_panels, dout_panels: the same in panels of the columns that a group makes of dk and dv, ``[..., rows, width]``.
      lse, delta: of the same rows, ``[stages * row_tiles, 1, rows]`` in float32.
      segments: of the rows of lse, in int32; without segments lse again.
      p, ds: weights and the gradient of the logits. Where groups share keys of ``rows`` by keys, ``[slots * consumers,
        rows, 64]``; else keys by rows, ``[slots * consumers, 64, block_q]``, and p stays in registers.
      ds_panels: the gradient of the logits of 64 rows and 64 keys, ``[..., 64, 64]``.
      dq: parts of dq, ``[consumers, 1, 64, 64]`` in float32.
      place: for each of two tiles of keys the published place in the queue and its ``Bounds``, one number each.
    """

    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    k_panels: gl.shared_memory_descriptor
    out: gl.shared_memory_descriptor
    q: gl.shared_memory_descriptor
    dout: gl.shared_memory_descriptor
    q_panels: gl.shared_memory_descriptor
    dout_panels: gl.shared_memory_descriptor
    lse: gl.shared_memory_descriptor
    segments: gl.shared_memory_descriptor
    delta: gl.shared_memory_descriptor
    p: gl.shared_memory_descriptor
    ds: gl.shared_memory_descriptor
    ds_panels: gl.shared_memory_descriptor
    dq: gl.shared_memory_descriptor
    place: gl.shared_memory_descriptor


class Barriers(NamedTuple):
    """One barrier a slot: ``full`` when what it guards has come, ``empty`` when all who read it are done."""

    place_full: gl.shared_memory_descriptor
    place_empty: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor
    k_empty: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    v_empty: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    dout_full: gl.shared_memory_descriptor
    dout_empty: gl.shared_memory_descriptor
    ds_full: gl.shared_memory_descriptor


@gluon.jit
def copy_tiles(descriptors, pointers, buffers, barriers, plan: gl.constexpr, static: gl.constexpr):
    """Takes tiles of keys, and copies those, queries and the output's gradient as far ahead as slots are free."""
    k_desc, v_desc, row_descriptors = descriptors
    ranges, lengths, counter = pointers
    count = 0
    turn = 0
    place = gl.program_id(0)
    bounds = load_bounds(place, ranges, lengths, plan, static)
    publish_place(place, bounds, turn, buffers, barriers, plan, static)
    while place < plan.num_tiles:
        if not plan.takes_late:
            next_tile = plan.num_programs + next_place(counter)
        walk = walk_of(place, bounds, plan, static)
        steps = steps_of(walk, static)
        _load_keys(k_desc, walk, turn, barriers.k_full, barriers.k_empty, buffers.k, plan, static)
        # The slot of the values is the last that is free: dk leaves from there.
        early = gl.minimum(steps, 1)
        for step in range(early):
            _load_rows(row_descriptors, step, count + step, walk, buffers, barriers, plan, static)
        _load_keys(v_desc, walk, turn, barriers.v_full, barriers.v_empty, buffers.v, plan, static)
        if plan.takes_late:
            most = gl.maximum(steps - _TAKEN_BEFORE, early)
            for step in range(early, most):
                _load_rows(row_descriptors, step, count + step, walk, buffers, barriers, plan, static)
            next_tile = plan.num_programs + next_place(counter)
            bounds = load_bounds(next_tile, ranges, lengths, plan, static)
            for step in range(most, steps):
                _load_rows(row_descriptors, step, count + step, walk, buffers, barriers, plan, static)
        else:
            for step in range(early, steps):
                _load_rows(row_descriptors, step, count + step, walk, buffers, barriers, plan, static)
        count += steps
        turn += 1
        place = next_tile
        if not plan.takes_late:
            bounds = load_bounds(place, ranges, lengths, plan, static)
        publish_place(place, bounds, turn, buffers, barriers, plan, static)


@gluon.jit
def _load_keys(desc, walk, turn, full, empty, buffer, plan: gl.constexpr, static: gl.constexpr):
    """Waits until the keys or values of the tile before are done with, and starts the copies of a tile."""
    mbarrier.wait(empty.index(0), (turn & 1) ^ 1)
    TILES: gl.constexpr = plan.key_tiles
    mbarrier.expect(full.index(0), TILES * desc.block_type.nbytes)
    for i in gl.static_range(TILES):
        key = walk.block * static.block_k + i * _ROWS
        place = [walk.batch, key, walk.kv_head * static.head_dim]
        tma.async_load(desc, place, full.index(0), buffer.index(i))


@gluon.jit
def _load_rows(descriptors, step, count, walk, buffers, barriers, plan: gl.constexpr, static: gl.constexpr):
    """Waits for a free slot of queries, then of the output's gradient, and starts the copies of a tile into each."""
    q_desc, dout_desc, lse_desc, segments_desc, delta_desc = descriptors
    block, head = place_of(step, walk, static)
    slot, phase = slot_of(count, plan.stages)
    TILES: gl.constexpr = plan.row_tiles
    full = barriers.q_full.index(slot)
    mbarrier.wait(barriers.q_empty.index(slot), phase ^ 1)
    NUMBERS: gl.constexpr = 2 if static.has_segments else 1
    mbarrier.expect(full, TILES * (q_desc.block_type.nbytes + NUMBERS * lse_desc.block_type.nbytes))
    for i in gl.static_range(TILES):
        first = block * static.block_q + i * plan.rows
        tma.async_load(q_desc, [walk.batch, first, head * static.head_dim], full, buffers.q.index(slot * TILES + i))
        lse_row = walk.batch * static.num_q_heads + head
        tma.async_load(lse_desc, [lse_row, first], full, buffers.lse.index(slot * TILES + i))
        if static.has_segments:
            tma.async_load(segments_desc, [walk.batch, first], full, buffers.segments.index(slot * TILES + i))
    slot, phase = slot_of(count, plan.dout_stages)
    full = barriers.dout_full.index(slot)
    mbarrier.wait(barriers.dout_empty.index(slot), phase ^ 1)
    mbarrier.expect(full, TILES * (dout_desc.block_type.nbytes + delta_desc.block_type.nbytes))
    for i in gl.static_range(TILES):
        first = block * static.block_q + i * plan.rows
        place = [walk.batch, first, head * static.head_dim]
        tma.async_load(dout_desc, place, full, buffers.dout.index(slot * TILES + i))
        lse_row = walk.batch * static.num_q_heads + head
        tma.async_load(delta_desc, [lse_row, first], full, buffers.delta.index(slot * TILES + i))


@gluon.jit
def _zero_padding(memory, slot, first_key, walk, plan: gl.constexpr):
    """Zeroes what lies behind the length of the sequence, in a slot of 64 keys or their values."""
    padding = walk.length - first_key
    if plan.has_lengths and padding < _ROWS:
        zero_rows(memory, slot, gl.maximum(padding, 0), _WARPS)


@gluon.jit
def differentiate(
    CONSUMER: gl.constexpr,
    descriptors,
    pointers,
    buffers,
    barriers,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """Makes dk and dv of 64 keys, or half of their columns, and of each tile of rows half of what is added to dq."""
    dk_desc, dv_desc, dq_desc = descriptors
    kv_segments, dropout, dq = pointers
    count = 0
    turn = 0
    place, bounds = receive_place(turn, buffers, barriers, plan, static)
    while place < plan.num_tiles:
        walk = walk_of(place, bounds, plan, static)
        OWN_KEYS: gl.constexpr = 0 if plan.shares_keys else CONSUMER
        first_key = walk.block * static.block_k + OWN_KEYS * _ROWS
        columns = load_columns(first_key, walk.batch, kv_segments, layouts.logits, static)
        seeds = load_seeds(dropout, walk.batch, static)
        dk_acc = gl.zeros([_ROWS, plan.width], gl.float32, layouts.keys)
        dv_acc = gl.zeros([_ROWS, plan.width], gl.float32, layouts.keys)
        steps = steps_of(walk, static)
        mbarrier.wait(barriers.k_full.index(0), turn & 1)
        _zero_padding(buffers.k, OWN_KEYS, first_key, walk, plan)
        product = gl.zeros([_ROWS, plan.rows], gl.float32, layouts.logits)
        if plan.ahead:
            product = multiply_keys(CONSUMER, count, steps > 0, buffers, barriers, plan, static, layouts)
            product = warpgroup_mma_wait(0, deps=[product])
        mbarrier.wait(barriers.v_full.index(0), turn & 1)
        _zero_padding(buffers.v, OWN_KEYS, first_key, walk, plan)
        of_dq = (seeds, dq_desc, dq)
        for step in range(steps):
            carried = (dk_acc, dv_acc, product)
            numbers = (step, steps, count + step)
            if plan.late_dq:
                dk_acc, dv_acc, product = differentiate_late(
                    CONSUMER, carried, numbers, walk, columns, of_dq, buffers, barriers, plan, static, layouts
                )
            else:
                dk_acc, dv_acc, product = differentiate_rows(
                    CONSUMER, carried, numbers, walk, columns, of_dq, buffers, barriers, plan, static, layouts
                )
        count += steps
        if plan.late_dq:
            add_last(CONSUMER, steps, count, walk, of_dq, buffers, barriers, plan, static, layouts)
        mbarrier.arrive(barriers.k_empty.index(0))
        slot = buffers.out.index(CONSUMER)
        tile = slot.reshape([_ROWS, plan.width])
        column = walk.kv_head * static.head_dim + (CONSUMER - OWN_KEYS) * plan.width
        out = [walk.batch, first_key, column]
        if static.keep_threshold is not None:
            dv_acc *= static.keep_scale
            dk_acc *= static.keep_scale
        tile.store(dv_acc.to(buffers.q.dtype))
        fence_async_shared()
        tma.async_store(dv_desc, out, slot)
        tma.store_wait(0)
        tile.store((dk_acc * static.scale).to(buffers.q.dtype))
        fence_async_shared()
        tma.async_store(dk_desc, out, slot)
        tma.store_wait(0)
        mbarrier.arrive(barriers.v_empty.index(0))
        turn += 1
        place, bounds = receive_place(turn, buffers, barriers, plan, static)
