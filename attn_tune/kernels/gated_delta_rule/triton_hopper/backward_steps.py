"""Device code of the backward's walks over the chunks of a sequence on Hopper, in both directions.

One warp copies what a chunk needs to shared memory, some chunks ahead. A group of four warps holds 64 columns of a
state, or of its gradient, turned (``lang.gluon.chunks.states``). The formulas are those of ``triton.backward_scan``;
here the gradient of the state after a chunk meets the keys and the inverse of the chunk in turn, without carriers.
"""

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

from attn_tune.kernels.gated_delta_rule.triton_hopper.walk import (
    BETA,
    BETA_FROM_START,
    FROM_START,
    TO_END,
    by_token,
)
from attn_tune.kernels.lang.gluon.chunks import CHUNK, COLUMNS, NUMBERS
from attn_tune.kernels.lang.gluon.chunks.numbers import COPIED, last_number
from attn_tune.kernels.lang.gluon.chunks.places import stage_of
from attn_tune.kernels.lang.gluon.chunks.states import BY_ROWS, await_chunk, clear_from, first_column, store_some
from attn_tune.kernels.lang.gluon.names import new_barriers, start_copy, start_store, synchronize, viewed

_CHUNK = gl.constexpr(CHUNK)
_COLUMNS = gl.constexpr(COLUMNS)
_NUMBERS = gl.constexpr(NUMBERS)


class Buffers(NamedTuple):
    """Slots in shared memory, and their barriers. A walk forwards leaves ``q`` and ``mixed`` unused.

    Attributes:
      q, k: queries and keys ``[stages, chunk, H]``.
      v: values, or gradients of outputs, ``[stages, chunk, columns]``.
      solved: the two parts of an inverse ``[2 * stages, chunk, chunk]``.
      mixed: squares ``[stages, chunk, chunk]``.
      numbers: of each token, float32 ``[stages, 1, NUMBERS * chunk]``.
      state: a state, or a gradient of one, on its way ``[columns, H]``.
      tiles: numbers of tokens on their way ``[2, chunk, columns]``.
      full, empty: barriers of each stage: all has come, and all has been read.
    """

    q: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    solved: gl.shared_memory_descriptor
    mixed: gl.shared_memory_descriptor
    numbers: gl.shared_memory_descriptor
    state: gl.shared_memory_descriptor
    tiles: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor


@gluon.jit
def new_buffers(dtype: gl.constexpr, static: gl.constexpr, plan: gl.constexpr):
    """Shared memory of a program."""
    STAGES: gl.constexpr = plan.stages
    H: gl.constexpr = static.width
    rows: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_CHUNK, H], dtype)
    square: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_CHUNK, _CHUNK], dtype)
    q = gl.allocate_shared_memory(dtype, [STAGES, _CHUNK, H], rows)
    k = gl.allocate_shared_memory(dtype, [STAGES, _CHUNK, H], rows)
    v = gl.allocate_shared_memory(dtype, [STAGES, _CHUNK, _COLUMNS], square)
    solved = gl.allocate_shared_memory(dtype, [2 * STAGES, _CHUNK, _CHUNK], square)
    mixed = gl.allocate_shared_memory(dtype, [STAGES, _CHUNK, _CHUNK], square)
    numbers = gl.allocate_shared_memory(gl.float32, [STAGES, 1, _NUMBERS * _CHUNK], COPIED)
    state = gl.allocate_shared_memory(dtype, [_COLUMNS, H], rows)
    tiles = gl.allocate_shared_memory(dtype, [2, _CHUNK, _COLUMNS], square)
    full = new_barriers(STAGES, 1)
    return Buffers(q, k, v, solved, mixed, numbers, state, tiles, full, new_barriers(STAGES, 1))


@gluon.jit
def copy_chunks(is_back, walk, descriptors, buffers, static: gl.constexpr, plan: gl.constexpr):
    """Copies what each chunk needs as far ahead as slots are free, from the last chunk to the first if ``is_back``."""
    k_desc, q_desc, v_desc, solved_desc, mixed_desc, numbers_desc, _, _, _ = descriptors
    H: gl.constexpr = static.width
    STAGES: gl.constexpr = plan.stages
    BYTES: gl.constexpr = 2 * _CHUNK * (H + _COLUMNS + 2 * _CHUNK) + 4 * _NUMBERS * _CHUNK
    BACK_BYTES: gl.constexpr = BYTES + 2 * _CHUNK * (H + _CHUNK)
    # One copy brings both parts of an inverse.
    pair: gl.constexpr = gl.NVMMASharedLayout.get_default_for([2 * _CHUNK, _CHUNK], buffers.solved.dtype)
    pairs = viewed(buffers.solved, [STAGES, 2 * _CHUNK, _CHUNK], pair)
    key_column = walk.head // static.group * H
    value_column = first_column(0, walk, static, plan)
    if walk.sequence >= 0:
        for step in range(walk.first, walk.last):
            chunk = gl.where(is_back, walk.last - 1 - step, step)
            stage, phase = stage_of(step, plan)
            full = buffers.full.index(stage)
            start = walk.begin + chunk * _CHUNK
            place = (walk.place + chunk) * static.heads + walk.head
            mbarrier.wait(buffers.empty.index(stage), phase ^ 1)
            if is_back:
                mbarrier.expect(full, BACK_BYTES)
            else:
                mbarrier.expect(full, BYTES)
            start_copy(k_desc, [start, key_column], full, buffers.k.index(stage))
            start_copy(numbers_desc, [place, 0], full, buffers.numbers.index(stage))
            start_copy(v_desc, [start, value_column], full, buffers.v.index(stage))
            if is_back:
                start_copy(mixed_desc, [place * _CHUNK, 0], full, buffers.mixed.index(stage))
            start_copy(solved_desc, [place * (2 * _CHUNK), 0], full, pairs.index(stage))
            if is_back:
                start_copy(q_desc, [start, key_column], full, buffers.q.index(stage))


@gluon.jit
def walk_forwards(
    walk,
    held,
    updates,
    rests,
    descriptors,
    buffers,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Stores the state before each chunk, and the updates of its tokens; ``held`` is the state before them all."""
    dtype: gl.constexpr = buffers.k.dtype
    for chunk in range(walk.first, walk.last):
        stage, phase = stage_of(chunk, plan)
        start = walk.begin + chunk * _CHUNK
        before = held.to(dtype)
        operand = gl.convert_layout(before, layouts.operand)
        if dtype == gl.float16:
            rest = gl.convert_layout(_rest_of(held, before), layouts.operand)
        k, v = await_chunk(0, start, stage, phase, walk, buffers, plan)
        nothing = gl.full([_COLUMNS, _CHUNK], 0.0, gl.float32, layouts.tokens)
        known = warpgroup_mma(operand, k.permute((1, 0)), nothing, use_acc=False, is_async=True)
        if dtype == gl.float16:
            known = warpgroup_mma(rest, k.permute((1, 0)), known, is_async=True)
        _store_state(before, chunk, walk, descriptors, buffers, static)
        values = v.permute((1, 0)).load(layouts.tokens).to(gl.float32) * by_token(BETA, stage, buffers, plan, layouts)
        weights = by_token(BETA_FROM_START, stage, buffers, plan, layouts)
        known = warpgroup_mma_wait(0, deps=[known])
        right = values - known * weights
        high = right.to(dtype)
        low = gl.convert_layout(_rest_of(right, high), layouts.operand)
        high = gl.convert_layout(high, layouts.operand)
        inverse = buffers.solved.index(2 * stage).permute((1, 0))
        inverse_rest = buffers.solved.index(2 * stage + 1).permute((1, 0))
        update = warpgroup_mma(high, inverse_rest, nothing, use_acc=False, is_async=True)
        update = warpgroup_mma(low, inverse, update, is_async=True)
        update = warpgroup_mma(high, inverse, update, is_async=True)
        held = held * last_number(FROM_START, stage, buffers.numbers, plan)
        after = by_token(TO_END, stage, buffers, plan, layouts)
        update = warpgroup_mma_wait(0, deps=[update])
        carried = update * after
        high = carried.to(dtype)
        # All first operands before the first product: none is made while a product is on its way.
        if dtype == gl.float16:
            low = gl.convert_layout(_rest_of(carried, high), layouts.update)
        held = warpgroup_mma(gl.convert_layout(high, layouts.update), k, held, is_async=True)
        if dtype == gl.float16:
            held = warpgroup_mma(low, k, held, is_async=True)
        high = update.to(dtype)
        _store_tiles(high, _rest_of(update, high), start, walk, updates, rests, descriptors, buffers, static, plan)
        held = warpgroup_mma_wait(0, deps=[held])
        mbarrier.arrive(buffers.empty.index(stage))
    tma.store_wait(0)


@gluon.jit
def walk_backwards(
    walk,
    held,
    update_gradients,
    dv,
    descriptors,
    buffers,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """The gradient of the state before all chunks, from ``held``, that of the state behind them.

    Stores the gradient of the state after each chunk, and those of the right sides and values of its tokens.
    """
    dtype: gl.constexpr = buffers.k.dtype
    for step in range(walk.first, walk.last):
        chunk = walk.last - 1 - step
        stage, phase = stage_of(step, plan)
        start = walk.begin + chunk * _CHUNK
        after = held.to(dtype)
        operand = gl.convert_layout(after, layouts.operand)
        if dtype == gl.float16:
            rest = gl.convert_layout(_rest_of(held, after), layouts.operand)
        k, dout = await_chunk(0, start, stage, phase, walk, buffers, plan)
        q = buffers.q.index(stage)
        if start + _CHUNK > walk.end:
            # The gradients of these rows are zeros, which are no help where queries are infinite.
            clear_from(walk.end - start, q)
            fence_async_shared()
            synchronize()
        nothing = gl.full([_COLUMNS, _CHUNK], 0.0, gl.float32, layouts.tokens)
        known = warpgroup_mma(operand, k.permute((1, 0)), nothing, use_acc=False, is_async=True)
        if dtype == gl.float16:
            known = warpgroup_mma(rest, k.permute((1, 0)), known, is_async=True)
        mixed = buffers.mixed.index(stage)
        mix = warpgroup_mma(dout.permute((1, 0)), mixed, nothing, use_acc=False, is_async=True)
        _store_state(after, chunk, walk, descriptors, buffers, static)
        to_end = by_token(TO_END, stage, buffers, plan, layouts)
        known = warpgroup_mma_wait(1, deps=[known])
        # In two parts: where keys are alike, the inverse takes differences of large numbers.
        right = known * to_end
        high = right.to(dtype)
        low = gl.convert_layout(_rest_of(right, high), layouts.operand)
        high = gl.convert_layout(high, layouts.operand)
        inverse = buffers.solved.index(2 * stage)
        y = warpgroup_mma(high, buffers.solved.index(2 * stage + 1), nothing, use_acc=False, is_async=True)
        y = warpgroup_mma(low, inverse, y, is_async=True)
        y = warpgroup_mma(high, inverse, y, is_async=True)
        direct = dout.permute((1, 0)).load(layouts.tokens).to(gl.float32)
        direct = direct * (by_token(FROM_START, stage, buffers, plan, layouts) * static.scale)
        direct = gl.convert_layout(direct.to(dtype), layouts.update)
        held = held * last_number(FROM_START, stage, buffers.numbers, plan)
        held = warpgroup_mma(direct, q, held, is_async=True)
        weights = -by_token(BETA_FROM_START, stage, buffers, plan, layouts)
        y, mix = warpgroup_mma_wait(1, deps=[y, mix])
        y = y + mix * static.scale
        carried = y * weights
        high = carried.to(dtype)
        # All first operands before the first product: none is made while a product is on its way.
        if dtype == gl.float16:
            low = gl.convert_layout(_rest_of(carried, high), layouts.update)
        held = warpgroup_mma(gl.convert_layout(high, layouts.update), k, held, is_async=True)
        if dtype == gl.float16:
            held = warpgroup_mma(low, k, held, is_async=True)
        dvalues = (y * by_token(BETA, stage, buffers, plan, layouts)).to(dtype)
        _store_tiles(y.to(dtype), dvalues, start, walk, update_gradients, dv, descriptors, buffers, static, plan)
        held = warpgroup_mma_wait(0, deps=[held])
        mbarrier.arrive(buffers.empty.index(stage))
    tma.store_wait(0)
    return held


@gluon.jit
def store_gradient(walk, held, dinitial_state, static: gl.constexpr, layouts: gl.constexpr):
    """Stores a group's columns of the gradient of an initial state."""
    H: gl.constexpr = static.width
    V: gl.constexpr = static.v_width
    row = _found_again(gl.arange(0, H, gl.SliceLayout(0, layouts.state)))
    column = walk.tile * _COLUMNS + _found_again(gl.arange(0, _COLUMNS, gl.SliceLayout(1, layouts.state)))
    index = walk.sequence * static.heads + walk.head
    base = dinitial_state + index.to(gl.int64) * (H * V)
    gl.store(base + (row[None, :] * V + column[:, None]), held)


@gluon.jit
def _found_again(x):
    """The same integers, as of unknown origin.

    Else the addresses of a load before a walk, which this store's are like, stay in registers all the way.
    """
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _rest_of(x, rounded):
    """The part of float32 numbers that ``rounded`` does not hold, in its dtype."""
    return (x - rounded.to(gl.float32)).to(rounded.dtype)


@gluon.jit
def _store_state(values, chunk, walk, descriptors, buffers, static: gl.constexpr):
    """Stores a group's columns of a state, or of a gradient of one, at the place of a chunk."""
    # The state of the chunk before has left; both tiles of that chunk may be on their way.
    tma.store_wait(2)
    synchronize()
    buffers.state.store(values)
    fence_async_shared()
    synchronize()
    place = (walk.place + chunk) * static.heads + walk.head
    start_store(descriptors[6], [place * static.v_width + walk.tile * _COLUMNS, 0], buffers.state)


@gluon.jit
def _store_tiles(one, other, start, walk, ones, others, descriptors, buffers, static: gl.constexpr, plan: gl.constexpr):
    """Stores two tiles of the tokens from ``start`` on, turned back on their way."""
    # The tiles of the chunk before have left; the state of this one may be on its way.
    tma.store_wait(1)
    synchronize()
    buffers.tiles.index(0).permute((1, 0)).store(one)
    buffers.tiles.index(1).permute((1, 0)).store(other)
    fence_async_shared()
    synchronize()
    if start + _CHUNK <= walk.end:
        column = first_column(0, walk, static, plan)
        start_store(descriptors[7], [start, column], buffers.tiles.index(0))
        start_store(descriptors[8], [start, column], buffers.tiles.index(1))
    else:
        store_some(0, buffers.tiles.index(0).load(BY_ROWS), start, walk, ones, static, plan)
        store_some(0, buffers.tiles.index(1).load(BY_ROWS), start, walk, others, static, plan)
        # Waits count stores by descriptor, which are two fewer here.
        tma.store_wait(0)
