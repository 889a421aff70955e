"""Device code of the group of warps that differentiates the pairs of tokens of chunks on Hopper.

It finds the matrices ``w`` and ``beta z`` (``gated_delta_rule.triton.gradients``), and what all pairs and values add to
the gradients of gates and strengths.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attn_tune.kernels.gated_delta_rule.triton_hopper.chunk_parts import is_given_at, place_at
from attn_tune.kernels.lang.gluon.chunks import CHUNK, PART
from attn_tune.kernels.lang.gluon.chunks.states import BY_ROWS
from attn_tune.kernels.lang.gluon.names import synchronize
from attn_tune.kernels.lang.triton.chunks.decays import RESET
from attn_tune.kernels.lang.triton.device.tile import LOG2E

_CHUNK = gl.constexpr(CHUNK)
_PART = gl.constexpr(PART)
# Columns of a state at a time, where it is read as it was given.
_ROWS = gl.constexpr(16)
# The base-2 logarithm of a reset, as far as decays are concerned: its exponential is exactly zero.
_FORGETS = gl.constexpr(-160.0)


@gluon.jit
def pair_chunks(places, arrays, states, buffers, static: gl.constexpr, plan: gl.constexpr, layouts: gl.constexpr):
    """Passes on the matrices of each chunk and value head, and stores the gradients of gates and strengths."""
    dg, dbeta = arrays[6], arrays[7]
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
            if sequence >= 0:
                for member in range(static.group):
                    place = (slot, start, end, begin, sequence)
                    head = key_head * static.group + member
                    step = _pair_head(place, head, step, turn, heads, arrays, states, buffers, static, plan, layouts)
                    heads += 1
                mbarrier.arrive(buffers.keys_empty.index(0))
                turn += 1
            else:
                row = start + gl.arange(0, _CHUNK, gl.SliceLayout(1, layouts.pairs))
                nothing = gl.full([_CHUNK], 0.0, gl.float32, gl.SliceLayout(1, layouts.pairs))
                for member in range(static.group):
                    numbers = row.to(gl.int64) * static.heads + key_head * static.group + member
                    gl.store(dg + numbers, nothing, mask=row < end)
                    gl.store(dbeta + numbers, nothing, mask=row < end)


@gluon.jit
def _pair_head(
    place,
    head,
    step,
    turn,
    heads,
    arrays,
    states,
    buffers,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Passes on the matrices of one chunk and value head, and stores the gradients of its numbers; the next step."""
    g, initial_state, dstate, decays, _, _, dg, dbeta = arrays
    slot, start, end, _, _ = place
    dtype: gl.constexpr = buffers.k.dtype
    by_pairs: gl.constexpr = gl.SliceLayout(1, layouts.pairs)
    TILES: gl.constexpr = static.v_width // _PART
    STAGES: gl.constexpr = plan.stages
    row = gl.arange(0, _CHUNK, by_pairs)
    column = gl.arange(0, _CHUNK, gl.SliceLayout(0, layouts.pairs))
    numbers = decays + (slot * static.heads + head).to(gl.int64) * (4 * _CHUNK)
    weight = gl.load(numbers + row)
    tokens = (start + row).to(gl.int64) * static.heads + head
    gates = gl.full([_CHUNK], 0.0, gl.float32, by_pairs)
    if g is not None:
        gates = gl.load(g + tokens, mask=start + row < end, other=0.0)
    w = gl.full([_CHUNK, _CHUNK], 0.0, gl.float32, layouts.pairs)
    z = gl.full([_CHUNK, _CHUNK], 0.0, gl.float32, layouts.pairs)
    for _tile in range(TILES):
        stage = step % STAGES
        mbarrier.wait(buffers.full.index(stage), step // STAGES & 1)
        dout = buffers.dout.index(stage)
        y = buffers.y.index(stage)
        update = buffers.updates.index(stage).permute((1, 0))
        rest = buffers.rests.index(stage).permute((1, 0))
        w = warpgroup_mma(dout, update, w, is_async=True)
        z = warpgroup_mma(y, update, z, is_async=True)
        w = warpgroup_mma(dout, rest, w, is_async=True)
        z = warpgroup_mma(y, rest, z, is_async=True)
        w, z = warpgroup_mma_wait(0, deps=[w, z])
        mbarrier.arrive(buffers.empty.index(stage))
        step += 1

    mbarrier.wait(buffers.keys_full.index(0), turn & 1)
    found = _of_keys(buffers.q, buffers.k, layouts)
    decay = _decays(gates, layouts)
    # What is behind the sequence may be infinite.
    is_row = (start + row < end)[:, None]
    is_before = (row[:, None] >= column[None, :]) & is_row
    w = gl.where(is_before, w * decay * static.scale, 0.0)
    found = warpgroup_mma_wait(0, deps=[found])
    products = gl.where(is_before, w * found, 0.0)
    mbarrier.wait(buffers.squares_empty.index(0), (heads & 1) ^ 1)
    buffers.squares.index(0).store(w.to(dtype))
    found = _of_keys(buffers.k, buffers.k, layouts)
    is_before = (row[:, None] > column[None, :]) & is_row
    z = gl.where(is_before, z * -decay, 0.0)
    buffers.squares.index(1).store((z * weight[:, None]).to(dtype))
    fence_async_shared()
    synchronize()
    mbarrier.arrive(buffers.squares_full.index(0))
    found = warpgroup_mma_wait(0, deps=[found])
    found = gl.where(is_before, z * found, 0.0)
    strength = gl.sum(found, 1)
    products += found * weight[:, None]
    logs = gl.sum(products, 1) - gl.convert_layout(gl.sum(products, 0), by_pairs)
    mbarrier.wait(buffers.shares_full.index(0), heads & 1)
    for group in gl.static_range(2):
        logs += buffers.shares.index(2 * group).load(by_pairs)
        strength += buffers.shares.index(2 * group + 1).load(by_pairs)
    strength += buffers.shares.index(4).load(by_pairs)
    if is_given_at(place, initial_state is not None, dstate is not None):
        carried = _carried(place, head, initial_state, dstate, states, static) * gl.load(numbers + 3 * _CHUNK - 1)
        logs += gl.where(row == _CHUNK - 1, carried, 0.0)
    # The gradient of a gate is the sum over its token and all later ones.
    later = gl.convert_layout(logs, gl.SliceLayout(0, layouts.pairs))[None, :]
    gate = gl.sum(gl.where(column[None, :] >= row[:, None], later, 0.0), 1)
    gl.store(dg + tokens, gl.where(gates < RESET, 0.0, gate), mask=start + row < end)
    gl.store(dbeta + tokens, strength, mask=start + row < end)
    return step


@gluon.jit
def _carried(place, head, initial_state, dstate, states, static: gl.constexpr):
    """The sum over the products of a state before a chunk and its gradient after it, either as it was given.

    It is a sum over a whole state, where the roundings of a short sequence would be more than is allowed.
    """
    slot, start, end, begin, sequence = place
    H: gl.constexpr = static.width
    V: gl.constexpr = static.v_width
    row = gl.arange(0, _ROWS, gl.SliceLayout(1, BY_ROWS))[:, None]
    channel = gl.arange(0, H, gl.SliceLayout(0, BY_ROWS))[None, :]
    own = (slot * static.heads + head).to(gl.int64) * (H * V)
    given = (sequence * static.heads + head).to(gl.int64) * (H * V)
    total = gl.full([_ROWS, H], 0.0, gl.float32, BY_ROWS)
    for first in range(0, V, _ROWS):
        turned = (first + row) * H + channel
        plain = channel * V + first + row
        before = gl.load(states[0] + own + turned).to(gl.float32)
        after = gl.load(states[1] + own + turned).to(gl.float32)
        if initial_state is not None and start == begin:
            before = gl.load(initial_state + given + plain).to(gl.float32)
        if dstate is not None and start + _CHUNK >= end:
            after = gl.load(dstate + given + plain).to(gl.float32)
        total += before * after
    return gl.sum(gl.sum(total, 1), 0)


@gluon.jit
def _of_keys(left, keys, layouts: gl.constexpr):
    """Starts the products of queries or keys with keys, tokens by tokens."""
    found = gl.full([_CHUNK, _CHUNK], 0.0, gl.float32, layouts.pairs)
    for half in gl.static_range(2):
        found = warpgroup_mma(left.index(half), keys.index(half).permute((1, 0)), found, is_async=True)
    return found


@gluon.jit
def _decays(gates, layouts: gl.constexpr):
    """The decay from each token (columns) to each later one (rows); what is above the diagonal is not used."""
    row = gl.arange(0, _CHUNK, gl.SliceLayout(1, layouts.pairs))
    column = gl.arange(0, _CHUNK, gl.SliceLayout(0, layouts.pairs))
    logs = gl.where(gates < RESET, _FORGETS, gates * LOG2E)
    logs = gl.convert_layout(logs, gl.SliceLayout(0, layouts.pairs))
    sums = gl.sum(gl.where(row[:, None] >= column[None, :], logs[None, :], 0.0), 1)
    columns = gl.convert_layout(sums, gl.SliceLayout(0, layouts.pairs))
    return gl.exp2(gl.minimum(sums[:, None] - columns[None, :], 0.0))
