"""Device code of the groups of warps that differentiate chunks on Hopper by the states around them.

Each has half of the channels of queries and keys, with which it adds up the products with states, and then those with
the matrices ``w`` and ``beta z`` of a chunk's pairs of tokens, which come from another group (``chunk_pairs``).
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attn_tune.kernels.gated_delta_rule.triton_hopper.chunk_parts import is_given_at, place_at
from attn_tune.kernels.lang.gluon.chunks import CHUNK, PART, WARPS
from attn_tune.kernels.lang.gluon.chunks.states import BY_ROWS, clear_from
from attn_tune.kernels.lang.gluon.names import start_store, synchronize

_CHUNK = gl.constexpr(CHUNK)
_PART = gl.constexpr(PART)
# Rows that are read at a time of a state turned: few, as sums take most registers meanwhile.
_ROWS = gl.constexpr(16)
# Tokens of a chunk whose values a group multiplies.
_TOKENS = gl.constexpr(CHUNK // 2)
# Sixteen bytes of a row a thread, of half of the tokens.
_BY_PARTS = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [WARPS, 1], [1, 0]))


@gluon.jit
def differentiate_chunks(
    GROUP: gl.constexpr,
    places,
    arrays,
    stored,
    buffers,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Stores a group's half of the gradients of queries and keys."""
    _, _, _, _, dq, dk, _, _ = arrays
    HALF: gl.constexpr = static.width // 2
    ITEMS: gl.constexpr = static.slots * static.key_heads
    # Parts, key heads and value heads of chunks that came before.
    step = gl.program_id(0) * 0
    turn = gl.program_id(0) * 0
    heads = gl.program_id(0) * 0
    for item in range(gl.program_id(0), ITEMS, plan.programs):
        key_head = item % static.key_heads
        slot = item // static.key_heads
        sequence, start, end, begin = place_at(places, slot)
        if start < end:
            place = (slot, start, end, begin, sequence)
            if sequence >= 0:
                for member in range(static.group):
                    count = (step, turn, heads)
                    step = _add_head(
                        GROUP, place, key_head, member, count, arrays, stored, buffers, static, plan, layouts
                    )
                    heads += 1
                mbarrier.arrive(buffers.keys_empty.index(0))
                turn += 1
            else:
                nothing = gl.full([_CHUNK, HALF], 0.0, gl.float32, layouts.half)
                _await_stores()
                _store_keys(2 * GROUP, dq, stored[0], nothing, place, key_head, GROUP, buffers, static)
                _store_keys(2 * GROUP + 1, dk, stored[1], nothing, place, key_head, GROUP, buffers, static)
    tma.store_wait(0)


@gluon.jit
def _await_stores():
    """Waits until the gradients of the chunk before have left: their slots are those of the sums."""
    tma.store_wait(0)
    synchronize()


@gluon.jit
def _store_keys(
    WHICH: gl.constexpr,
    x,
    descriptor,
    values,
    place,
    key_head,
    GROUP: gl.constexpr,
    buffers,
    static: gl.constexpr,
):
    """Stores a group's half of the gradients of queries or keys, those of tokens before the end."""
    _, start, end, _, _ = place
    HALF: gl.constexpr = static.width // 2
    slot = buffers.out.index(2 * WHICH)
    column = key_head * static.width + GROUP * HALF
    slot.store(values.to(x.dtype.element_ty))
    fence_async_shared()
    synchronize()
    if start + _CHUNK <= end:
        start_store(descriptor, [start, column], slot)
    else:
        row = start + gl.arange(0, _CHUNK, gl.SliceLayout(1, BY_ROWS))
        channel = column + gl.arange(0, HALF, gl.SliceLayout(0, BY_ROWS))
        offsets = row.to(gl.int64)[:, None] * (static.key_heads * static.width) + channel[None, :]
        gl.store(x + offsets, slot.load(BY_ROWS), mask=(row < end)[:, None])


@gluon.jit
def _add_head(
    GROUP: gl.constexpr,
    place,
    key_head,
    member,
    count,
    arrays,
    stored,
    buffers,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Adds what one value head has to a chunk's sums, which leave with the last one; the next step."""
    _, _, _, decays, dq, dk, _, _ = arrays
    slot, start, end, _, _ = place
    step, turn, heads = count
    head = key_head * static.group + member
    by_half: gl.constexpr = gl.SliceLayout(1, layouts.half)
    # All that is read from global memory, before it is needed.
    numbers = decays + (slot * static.heads + head).to(gl.int64) * (4 * _CHUNK)
    token = gl.arange(0, _CHUNK, by_half)
    weight = gl.load(numbers + token)
    before = gl.load(numbers + 2 * _CHUNK + token)
    after = gl.load(numbers + 3 * _CHUNK + token)
    of_chunk = gl.load(numbers + 3 * _CHUNK - 1)
    of_q, of_rows, of_cols, carried, dotted, step = _add_parts(
        GROUP, place, step, arrays, buffers, static, plan, layouts
    )

    mbarrier.wait(buffers.keys_full.index(0), turn & 1)
    q = buffers.q.index(GROUP)
    k = buffers.k.index(GROUP)
    if (member == 0) & (start + _CHUNK > end):
        # What lies behind the sequence may be infinite, and is multiplied by zeros. The group of pairs may be reading:
        # other rows stay what they are, and these it masks.
        clear_from(end - start, q)
        clear_from(end - start, k)
        fence_async_shared()
        synchronize()
    is_token = start + token < end
    of_q *= (before * static.scale)[:, None]
    logs = gl.sum(q.load(layouts.half).to(gl.float32) * of_q, 1)
    keys = k.load(layouts.half).to(gl.float32)
    of_rows *= -before[:, None]
    strength = gl.sum(keys * of_rows, 1)
    of_cols *= after[:, None]
    to_end = gl.where(is_token, gl.sum(keys * of_cols, 1), 0.0)
    logs = gl.where(is_token, logs + weight * strength, 0.0) - to_end
    # What every gate of the chunk gets is what its last token has.
    logs += gl.where(token == _CHUNK - 1, carried * of_chunk + gl.sum(to_end, 0), 0.0)
    of_k = of_rows * weight[:, None] + of_cols

    # The group of pairs has read the shares of the head before.
    mbarrier.wait(buffers.squares_full.index(0), heads & 1)
    buffers.shares.index(2 * GROUP).store(logs)
    buffers.shares.index(2 * GROUP + 1).store(strength)
    buffers.shares.index(4).slice(GROUP * _TOKENS, _TOKENS).store(dotted)
    synchronize()
    mbarrier.arrive(buffers.shares_full.index(0))
    w = buffers.squares.index(0)
    z = buffers.squares.index(1)
    of_q = warpgroup_mma(w, k, of_q, is_async=True)
    of_k = warpgroup_mma(z, k, of_k, is_async=True)
    of_k = warpgroup_mma(z.permute((1, 0)), k, of_k, is_async=True)
    of_k = warpgroup_mma(w.permute((1, 0)), q, of_k, is_async=True)
    of_q, of_k = warpgroup_mma_wait(0, deps=[of_q, of_k])
    mbarrier.arrive(buffers.squares_empty.index(0))
    if static.group > 1 and member > 0:
        of_q += buffers.sums.index(2 * GROUP).load(layouts.half)
        of_k += buffers.sums.index(2 * GROUP + 1).load(layouts.half)
    if member == static.group - 1:
        _await_stores()
        _store_keys(2 * GROUP, dq, stored[0], of_q, place, key_head, GROUP, buffers, static)
        _store_keys(2 * GROUP + 1, dk, stored[1], of_k, place, key_head, GROUP, buffers, static)
    else:
        if member == 0:
            _await_stores()
        buffers.sums.index(2 * GROUP).store(of_q)
        buffers.sums.index(2 * GROUP + 1).store(of_k)
    return step


@gluon.jit
def _add_parts(
    GROUP: gl.constexpr,
    place,
    step,
    arrays,
    buffers,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Sums over the columns of states: of tokens and channels, and all products of states with their gradients.

    And of half of the tokens the products of values with their gradients.
    """
    _, initial_state, dstate, _, _, _, _, _ = arrays
    HALF: gl.constexpr = static.width // 2
    TILES: gl.constexpr = static.v_width // _PART
    STAGES: gl.constexpr = plan.stages
    of_q = gl.full([_CHUNK, HALF], 0.0, gl.float32, layouts.half)
    of_rows = gl.full([_CHUNK, HALF], 0.0, gl.float32, layouts.half)
    of_cols = gl.full([_CHUNK, HALF], 0.0, gl.float32, layouts.half)
    carried = gl.full([_ROWS, HALF], 0.0, gl.float32, BY_ROWS)
    dotted = gl.full([_TOKENS], 0.0, gl.float32, gl.SliceLayout(1, _BY_PARTS))
    for _tile in range(TILES):
        stage = step % STAGES
        mbarrier.wait(buffers.full.index(stage), step // STAGES & 1)
        state = buffers.states.index(stage * 2 + GROUP)
        later = buffers.later.index(stage * 2 + GROUP)
        dout = buffers.dout.index(stage)
        y = buffers.y.index(stage)
        u = buffers.updates.index(stage)
        of_q = warpgroup_mma(dout, state, of_q, is_async=True)
        of_rows = warpgroup_mma(y, state, of_rows, is_async=True)
        of_cols = warpgroup_mma(u, later, of_cols, is_async=True)
        if u.dtype == gl.float16:
            # Less is allowed of it.
            of_cols = warpgroup_mma(buffers.rests.index(stage), later, of_cols, is_async=True)
        for i in gl.static_range(_PART // _ROWS):
            before = state.slice(i * _ROWS, _ROWS).load(BY_ROWS).to(gl.float32)
            after = later.slice(i * _ROWS, _ROWS).load(BY_ROWS).to(gl.float32)
            carried += before * after
        values = buffers.v.index(stage).slice(GROUP * _TOKENS, _TOKENS).load(_BY_PARTS).to(gl.float32)
        dotted += gl.sum(y.slice(GROUP * _TOKENS, _TOKENS).load(_BY_PARTS).to(gl.float32) * values, 1)
        of_q, of_rows, of_cols = warpgroup_mma_wait(0, deps=[of_q, of_rows, of_cols])
        synchronize()
        mbarrier.arrive(buffers.empty.index(stage))
        step += 1
    # At an end of a sequence the group of pairs has them, of the state as it was given.
    is_given = is_given_at(place, initial_state is not None, dstate is not None)
    return of_q, of_rows, of_cols, gl.where(is_given, 0.0, gl.sum(gl.sum(carried, 1), 0)), dotted, step
