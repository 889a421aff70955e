"""The launch that differentiates chunks, each by itself, once the states on both sides and all of pairs are known.

It is the derivative of the products in ``prepare.py``: at each level the decayed queries and keys get their gradients
by products with ``w`` and ``z`` of ``pair_gradients.py``, each exponent gets the decayed number times its gradient, and
each gate the sum of those of the exponents that it is part of. No two of these terms cancel, so the gradients of gates
are as right as those of keys. Within the blocks that need no levels those of two tokens cancel at the gates before
both. They do so exactly: both are made of the same rounded numbers.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.kda.triton.backward_scan import Kept, Walked
from attn_tune.kernels.kda.triton.config import BackwardConfig
from attn_tune.kernels.kda.triton.pair_gradients import load_weights
from attn_tune.kernels.kda.triton.prepare import Prepared, product, rounded_twice
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.levels import (
    decayed,
    gates_near,
    load_logs,
    lowest_level,
    pairs_across,
    pairs_at,
    pairs_near,
    parts_of,
    summed,
    sums_near,
    tokens_before,
    tokens_within,
)
from attn_tune.kernels.lang.triton.chunks.static import (
    Static,
    chunk_of,
    load_lower,
    load_tokens,
    store_tokens,
)
from attn_tune.ops.recurrent.operands import BackwardInputs


def differentiate_channels(
    inputs: BackwardInputs,
    prepared: Prepared,
    kept: Kept,
    walked: Walked,
    matrices: jax.Array,
    strengths: jax.Array,
    config: BackwardConfig,
    static: Static,
) -> tuple[jax.Array, ...]:
    """``dq``, ``dk``, ``dg`` and ``dbeta``."""
    o = inputs.operands
    of_heads = (*o.v.shape[:3], static.width)
    channels = min(config.gradient_channels, static.block_h)
    parts = static.block_h // channels
    keys = jax.ShapeDtypeStruct(of_heads, o.q.dtype if static.group == 1 else jnp.float32)
    dq, dk, dg, more = triton_call(
        channels_kernel,
        o.q,
        o.k,
        o.g,
        o.beta,
        o.cu_seqlens,
        inputs.dout,
        *kept,
        walked.state_gradients,
        walked.update_gradients,
        prepared.solved,
        matrices,
        out_types=[
            keys,
            keys,
            jax.ShapeDtypeStruct(of_heads, jnp.float32),
            jax.ShapeDtypeStruct((*o.v.shape[:2], parts, static.heads), jnp.float32),
        ],
        grid=(parts * static.slots * static.heads, 1, 1),
        constexprs={"static": static, "CHANNELS": channels},
        num_warps=config.gradient_warps,
        num_stages=config.gradient_stages,
        name="kda_bwd_channels",
    )
    if static.group > 1:
        groups = (*o.q.shape[:3], static.group, static.width)
        dq, dk = (jnp.sum(x.reshape(groups), axis=3).astype(o.q.dtype) for x in (dq, dk))
    return dq, dk, dg, strengths + jnp.sum(more, axis=2)


@triton.jit
def channels_kernel(
    q,
    k,
    g,
    beta,
    cu_seqlens,
    dout,
    states,
    updates,
    state_gradients,
    update_gradients,
    solved,
    matrices,
    dq,
    dk,
    dg,
    strengths,
    static: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """One program per some channels, value head and chunk; tokens of no sequence get zeros."""
    chunk: tl.constexpr = static.chunk
    heads: tl.constexpr = static.heads
    width: tl.constexpr = static.width
    parts: tl.constexpr = static.block_h // CHANNELS
    # Not a loop: of its many masks those of tokens would stay in registers over it.
    part = tl.program_id(0) % parts
    index = tl.program_id(0) // parts
    head = index % heads
    sequence, start, end = chunk_of(cu_seqlens, index // heads, static)
    cols = part * CHANNELS + tl.arange(0, CHANNELS)
    if (sequence >= 0) & (start < end):
        weight = load_weights(beta, start, end, head, static)
        arrays = (dout, states, updates, state_gradients, update_gradients, solved)
        through = through_states(arrays, index, start, end, head, cols, static, CHANNELS)
        arrays = (q, k, g, matrices)
        of_queries, of_keys, of_gates, strength = through_decays(
            arrays, through, weight, index, start, end, head, cols, static
        )
    else:
        of_queries = tl.full([chunk, CHANNELS], 0, tl.float32)
        of_keys = of_queries
        of_gates = of_queries
        strength = tl.full([chunk], 0, tl.float32)
    if start < end:
        store_tokens(dq, of_queries, start, end, head, heads, width, cols, chunk)
        store_tokens(dk, of_keys, start, end, head, heads, width, cols, chunk)
        store_tokens(dg, of_gates, start, end, head, heads, width, cols, chunk)
        token = start + tl.arange(0, chunk)
        base = strengths + (token.to(tl.int64) * parts + part) * heads + head
        tl.store(base, strength, mask=token < end)


@triton.jit
def through_states(arrays, index, start, end, head, cols, static: tl.constexpr, CHANNELS: tl.constexpr):
    """Gradients of queries and keys decayed from the start, of keys decayed to the end, and of whole chunks' decays.

    The second one is without the strengths, the last one is of the factors' logarithms but for the factors.
    """
    dout, states, updates, state_gradients, update_gradients, solved = arrays
    chunk: tl.constexpr = static.chunk
    precision: tl.constexpr = static.precision
    heads: tl.constexpr = static.heads
    v_width: tl.constexpr = static.v_width
    of_queries = tl.full([chunk, CHANNELS], 0, tl.float32)
    of_known = tl.full([chunk, CHANNELS], 0, tl.float32)
    of_keys = tl.full([chunk, CHANNELS], 0, tl.float32)
    of_whole = tl.full([CHANNELS], 0, tl.float32)
    place = index.to(tl.int64) * (static.width * static.v_width)
    for first in tl.range(0, static.tiles * static.block_v, static.block_v):
        columns = first + tl.arange(0, static.block_v)
        dout_tile = load_tokens(dout, start, end, head, heads, v_width, columns, chunk, static.whole)
        u_tile = load_tokens(updates, start, end, head, heads, v_width, columns, chunk, static.whole)
        du_tile = load_tokens(update_gradients, start, end, head, heads, v_width, columns, chunk, static.whole)
        offsets = place + cols[:, None] * v_width + columns[None, :]
        inside = (cols < static.width)[:, None] & (columns < v_width)[None, :]
        state = tl.load(states + offsets, mask=inside, other=0.0)
        later = tl.load(state_gradients + offsets, mask=inside, other=0.0)
        of_queries = tl.dot(dout_tile, tl.trans(state), of_queries, input_precision=precision)
        of_known = tl.dot(du_tile.to(u_tile.dtype), tl.trans(state), of_known, input_precision=precision)
        of_keys = tl.dot(u_tile, tl.trans(later), of_keys, input_precision=precision)
        of_whole += tl.sum(state.to(tl.float32) * later.to(tl.float32), 1)
    high, low = rounded_twice(load_lower(solved, index, chunk), updates.dtype.element_ty)
    of_known = product(tl.trans(high), tl.trans(low), (-of_known).to(high.dtype), static)
    return of_queries * static.scale, of_known, of_keys, of_whole


@triton.jit
def through_decays(arrays, through, weight, index, start, end, head, cols, static: tl.constexpr):
    """Gradients of queries, keys and gates from those of ``through_states``, and what the strengths get more."""
    q, k, g, matrices = arrays
    of_queries, of_known, of_keys, of_whole = through
    chunk: tl.constexpr = static.chunk
    levels: tl.constexpr = chunk.bit_length() - 1
    precision: tl.constexpr = static.precision
    key_head = head // static.group
    k_tile = load_tokens(k, start, end, key_head, static.key_heads, static.width, cols, chunk, static.whole)
    q_tile = load_tokens(q, start, end, key_head, static.key_heads, static.width, cols, chunk, static.whole)
    logs, total = load_logs(g, start, end, head, cols, static)
    row = tl.arange(0, chunk)[:, None]
    col = tl.arange(0, chunk)[None, :]
    base = matrices + index.to(tl.int64) * (3 * chunk * chunk) + row * chunk + col
    w = tl.load(base)
    wt = tl.load(base + chunk * chunk)
    z = tl.load(base + 2 * chunk * chunk)

    before = summed(tokens_before(static), logs, static)
    factor = tl.exp2(before)
    strength = tl.sum(k_tile * factor * of_known, 1)
    of_known *= weight[:, None] * factor
    dq = of_queries * factor
    of_gates = summed(tokens_before(static, True), parts_of(q_tile * dq + k_tile * of_known), static)
    of_keys *= tl.exp2(summed(tokens_within(levels, static), logs, static))
    of_gates += summed(tokens_within(levels, static, True), parts_of(k_tile * of_keys), static)
    of_gates += (tl.exp2(total) * of_whole)[None, :]
    own = tl.sum(tl.where(row == col, w, 0.0).to(tl.float32), 1)[:, None]
    dq += own * k_tile
    dk = of_known + of_keys + own * q_tile
    lowest = lowest_level(logs, k_tile.dtype, static)
    if lowest > 0:
        near = sums_near(before, lowest, logs, static)
        factor = tl.exp2(near)
        later = (k_tile * factor * weight[:, None]).to(k_tile.dtype)
        later_queries = (q_tile * factor).to(k_tile.dtype)
        earlier = decayed(k_tile, -near)
        early = pairs_near(lowest, static)
        late = (row >> lowest == col >> lowest) & (row < col)
        found = tl.dot(tl.where(early, w, 0.0).to(z.dtype), earlier)
        more = tl.dot(tl.where(early, z, 0.0).to(z.dtype), earlier)
        of_earlier = tl.dot(tl.where(late, z, 0.0).to(z.dtype), later)
        of_earlier = tl.dot(tl.where(late, wt, 0.0).to(z.dtype), later_queries, of_earlier)
        shares = later_queries.to(tl.float32) * found + later.to(tl.float32) * more
        shares = parts_of(shares - earlier.to(tl.float32) * of_earlier)
        of_gates += summed(gates_near(lowest, static, True), shares, static)
        more *= factor
        strength += tl.sum(more * k_tile, 1)
        dq += found * factor
        dk += more * weight[:, None] + of_earlier * tl.exp2(-near)
    for level in tl.range(lowest, levels, num_stages=1, disable_licm=True):
        factor = tl.exp2(summed(tokens_within(level, static), logs, static))
        is_second = ((row >> level) % 2 == 1) & (cols >= 0)[None, :]
        strengths = tl.where(is_second, weight[:, None], 1.0)
        decayed_keys = (k_tile * factor * strengths).to(k_tile.dtype)
        decayed_queries = (q_tile * factor).to(k_tile.dtype)
        across = pairs_across(level, static)
        more = tl.dot(tl.where(across, z, 0.0).to(z.dtype), decayed_keys, input_precision=precision)
        strength += tl.sum(tl.where(is_second, more * k_tile * factor, 0.0), 1)
        late = across & (row < col)
        more *= strengths
        more = tl.dot(tl.where(late, wt, 0.0).to(z.dtype), decayed_queries, more, input_precision=precision) * factor
        early = tl.where(pairs_at(level, static), w, 0.0).to(z.dtype)
        found = tl.dot(early, decayed_keys, input_precision=precision) * factor
        dq += found
        dk += more
        shares = parts_of(q_tile * found + k_tile * more)
        of_gates += summed(tokens_within(level, static, True), shares, static)
    return dq, dk, of_gates, strength
