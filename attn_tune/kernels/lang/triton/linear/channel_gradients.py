"""The launches that differentiate chunks with a gate a channel, once the states on both sides are known.

With ``w[i, j] = scale (dout[i] . v[j])`` for ``j <= i`` and ``G`` as in ``channels.py``, channel by channel::

    dq[i] = scale exp(G[i]) S dout[i] + sum over j <= i of w[i, j] exp(G[i] - G[j]) k[j]
    dk[j] = exp(G[last] - G[j]) dS' v[j] + sum over i >= j of w[i, j] exp(G[i] - G[j]) q[i]

The sums over pairs are made level by level of halving, as the products of the forward are. ``w`` and its transpose are
one symmetric matrix, so that a level is one product. It gives first halves their part of ``dk`` and second ones that of
``dq``. The gradient of ``G[i]`` is ``q . dq - k . dk``, that of a gate the sum over its token and all later ones. The
terms of two tokens cancel there, and do so exactly: the factors of both are the rounded ones of the product. Those of
states come from both of their parts.

The first launch makes ``w`` and ``dv`` of each value head; the second one some channels of a key head.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from typing import Any

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.decays import RESET
from attn_tune.kernels.lang.triton.chunks.levels import (
    decayed,
    load_logs,
    lowest_level,
    pairs_across,
    pairs_near,
    summed,
    sums_near,
    tokens_before,
    tokens_within,
)
from attn_tune.kernels.lang.triton.chunks.states import load_some
from attn_tune.kernels.lang.triton.chunks.static import chunk_of, load_lower, load_tokens, store_tokens
from attn_tune.kernels.lang.triton.device.tile import LOG2E
from attn_tune.kernels.lang.triton.linear.channels import decayed_halves, load_channels
from attn_tune.kernels.lang.triton.linear.config import ChannelBackwardConfig
from attn_tune.kernels.lang.triton.linear.gradients import load_held, store_zeros
from attn_tune.kernels.lang.triton.linear.scan import Tokens, load_values
from attn_tune.kernels.lang.triton.linear.static import Static
from attn_tune.kernels.lang.triton.linear.walks import Walked


def differentiate_channels(
    operands: Any, tokens: Tokens, dout: jax.Array, walked: Walked, config: ChannelBackwardConfig, static: Static
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """``dq``, ``dk``, ``dv`` and ``dg``."""
    o = operands
    options = {"num_warps": config.gradient_warps, "num_stages": config.gradient_stages}
    weights = jax.ShapeDtypeStruct((static.slots, static.heads, static.chunk, static.chunk), o.q.dtype)
    dv, weights = triton_call(
        values_kernel,
        tokens.k,
        o.v,
        tokens.mixed,
        o.cu_seqlens,
        dout,
        walked.gradients,
        out_types=[jax.ShapeDtypeStruct(o.v.shape, o.v.dtype), weights],
        grid=(static.slots * static.heads, 1, 1),
        constexprs={"static": static},
        name="linear_attention_bwd_values",
        **options,
    )
    columns = min(config.gradient_columns, static.block_h)
    dq, dk, dg = triton_call(
        channels_kernel,
        o.q,
        o.k,
        o.v,
        o.g,
        o.cu_seqlens,
        dout,
        walked.states,
        walked.gradients,
        tokens.factors,
        weights,
        out_types=[
            jax.ShapeDtypeStruct(o.q.shape, o.q.dtype),
            jax.ShapeDtypeStruct(o.k.shape, o.k.dtype),
            jax.ShapeDtypeStruct(o.g.shape, jnp.float32),
        ],
        grid=(static.slots * static.key_heads * -(-static.width // columns), 1, 1),
        constexprs={"columns": columns, "static": static},
        name="linear_attention_bwd_channels",
        **options,
    )
    return dq, dk, dv, dg


@triton.jit
def values_kernel(decayed_k, v, mixed, cu_seqlens, dout, gradients, dv, weights, static: tl.constexpr):
    """One program per chunk and value head: ``dv``, and ``w`` as a symmetric matrix."""
    head = tl.program_id(0) % static.heads
    slot = tl.program_id(0) // static.heads
    sequence, start, end = chunk_of(cu_seqlens, slot, static)
    chunk: tl.constexpr = static.chunk
    if (sequence >= 0) & (start < end):
        index = slot * static.heads + head
        row = tl.arange(0, chunk)[:, None]
        col = tl.arange(0, chunk)[None, :]
        rows = tl.arange(0, static.block_h)
        w = tl.full([chunk, chunk], 0, tl.float32)
        wt = tl.full([chunk, chunk], 0, tl.float32)
        # Those of each value head, whatever keys were.
        k_tile = load_decayed(decayed_k, start, end, head, rows, static)
        mixed_tile = load_lower(mixed, index, chunk)
        for first in tl.range(0, static.tiles * static.block_v, static.block_v):
            cols = first + tl.arange(0, static.block_v)
            dout_tile = load_values(dout, start, end, head, cols, static)
            v_tile = load_values(v, start, end, head, cols, static)
            gradient = load_held(gradients, index * static.state_parts, cols, static)
            w = tl.dot(dout_tile, tl.trans(v_tile), w, input_precision=static.precision)
            wt = tl.dot(v_tile, tl.trans(dout_tile), wt, input_precision=static.precision)
            of_v = tl.dot(tl.trans(mixed_tile), dout_tile, input_precision=static.precision) * static.scale
            of_v = tl.dot(k_tile, gradient, of_v, input_precision=static.precision)
            store_tokens(dv, of_v, start, end, head, static.heads, static.v_width, cols, chunk)
        both = tl.where(row >= col, w, wt) * static.scale
        base = weights + index.to(tl.int64) * (chunk * chunk)
        tl.store(base + row * chunk + col, both.to(weights.dtype.element_ty))
    elif start < end:
        store_zeros(dv, start, end, head, static)


@triton.jit
def channels_kernel(
    q,
    k,
    v,
    g,
    cu_seqlens,
    dout,
    states,
    gradients,
    factors,
    weights,
    dq,
    dk,
    dg,
    columns: tl.constexpr,
    static: tl.constexpr,
):
    """One program per chunk, key head and tile of channels, which takes the value heads of its group in turn."""
    tiles: tl.constexpr = (static.width + columns - 1) // columns
    tile = tl.program_id(0) % tiles
    key_head = tl.program_id(0) // tiles % static.key_heads
    slot = tl.program_id(0) // (tiles * static.key_heads)
    sequence, start, end = chunk_of(cu_seqlens, slot, static)
    chunk: tl.constexpr = static.chunk
    rows = tile * columns + tl.arange(0, columns)
    if start < end:
        of_q = tl.full([chunk, columns], 0, tl.float32)
        of_k = tl.full([chunk, columns], 0, tl.float32)
        arrays = (q, k, v, g, dout, states, gradients, factors, weights)
        for member in tl.range(0, static.group, num_stages=1):
            head = key_head * static.group + member
            gate = tl.full([chunk, columns], 0, tl.float32)
            if sequence >= 0:
                more_q, more_k, gate = member_gradients(arrays, slot, start, end, head, rows, columns, static)
                of_q += more_q
                of_k += more_k
            store_tokens(dg, gate, start, end, head, static.heads, static.width, rows, chunk)
        store_tokens(dq, of_q, start, end, key_head, static.key_heads, static.width, rows, chunk)
        store_tokens(dk, of_k, start, end, key_head, static.key_heads, static.width, rows, chunk)


@triton.jit
def member_gradients(arrays, slot, start, end, head, rows, columns: tl.constexpr, static: tl.constexpr):
    """Some channels of one value head: its parts of ``dq`` and ``dk``, and its ``dg``."""
    q, k, v, g, dout, states, gradients, factors, weights = arrays
    index = slot * static.heads + head
    chunk: tl.constexpr = static.chunk
    precision: tl.constexpr = static.precision
    of_q = tl.full([chunk, columns], 0, tl.float32)
    of_k = tl.full([chunk, columns], 0, tl.float32)
    kept = tl.full([columns], 0, tl.float32)
    for first in tl.range(0, static.tiles * static.block_v, static.block_v):
        cols = first + tl.arange(0, static.block_v)
        dout_tile = load_values(dout, start, end, head, cols, static)
        v_tile = load_values(v, start, end, head, cols, static)
        state = load_some(states, index * static.state_parts, rows, cols, static)
        gradient = load_some(gradients, index * static.state_parts, rows, cols, static)
        of_q = tl.dot(dout_tile, tl.trans(state), of_q, input_precision=precision)
        of_k = tl.dot(v_tile, tl.trans(gradient), of_k, input_precision=precision)
        state = state.to(tl.float32)
        gradient = gradient.to(tl.float32)
        if static.state_parts == 2:
            rest = load_some(states, index * 2 + 1, rows, cols, static)
            of_q = tl.dot(dout_tile, tl.trans(rest), of_q)
            state += rest.to(tl.float32)
            rest = load_some(gradients, index * 2 + 1, rows, cols, static)
            of_k = tl.dot(v_tile, tl.trans(rest), of_k)
            gradient += rest.to(tl.float32)
        kept += tl.sum(state * gradient, 1)

    q_tile, k_tile = load_channels(q, k, start, end, head, rows, static)
    logs, _total = load_logs(g, start, end, head, rows, static)
    before = summed(tokens_before(static), logs, static)
    of_q *= tl.exp2(before) * static.scale
    of_k *= tl.exp2(summed(tokens_within(static.levels, static), logs, static))
    to_end = k_tile.to(tl.float32) * of_k
    of_logs = q_tile.to(tl.float32) * of_q - to_end
    factor = tl.load(factors + index.to(tl.int64) * static.width + rows, mask=rows < static.width, other=0.0)
    end_log = tl.sum(to_end, 0) + factor * kept

    row = tl.arange(0, chunk)[:, None]
    col = tl.arange(0, chunk)[None, :]
    pairs = tl.load(weights + index.to(tl.int64) * (chunk * chunk) + row * chunk + col)
    own = tl.sum(tl.where(row == col, pairs, 0.0).to(tl.float32), 1)[:, None]
    of_q += own * k_tile.to(tl.float32)
    of_k += own * q_tile.to(tl.float32)
    lowest = lowest_level(logs, k_tile.dtype, static)
    if lowest > 0:
        near = sums_near(before, lowest, logs, static)
        later, earlier = decayed(q_tile, near), decayed(k_tile, -near)
        is_early = pairs_near(lowest, static)
        is_late = (row >> lowest == col >> lowest) & (row < col)
        found = tl.dot(tl.where(is_early, pairs, 0.0).to(pairs.dtype), earlier)
        of_earlier = tl.dot(tl.where(is_late, pairs, 0.0).to(pairs.dtype), later)
        of_logs += later.to(tl.float32) * found - earlier.to(tl.float32) * of_earlier
        of_q += found * tl.exp2(near)
        of_k += of_earlier * tl.exp2(-near)
    for level in tl.range(lowest, static.levels, num_stages=1, disable_licm=True):
        halves, decay = decayed_halves(q_tile, k_tile, logs, level, static)
        across = tl.where(pairs_across(level, static), pairs, 0.0).to(pairs.dtype)
        found = tl.dot(across, halves, input_precision=precision)
        is_second = (row >> level) % 2 == 1
        share = found * halves.to(tl.float32)
        of_logs += tl.where(is_second, share, -share)
        found *= decay
        of_q += tl.where(is_second, found, 0.0)
        of_k += tl.where(is_second, 0.0, found)
    gate = end_log[None, :] + tl.sum(of_logs, 0)[None, :] - tl.cumsum(of_logs, 0) + of_logs
    return of_q, of_k, tl.where(logs[0] < RESET * LOG2E, 0.0, gate)


@triton.jit
def load_decayed(x, start, end, head, rows, static: tl.constexpr):
    """The decayed keys of a chunk, of which each value head has its own."""
    return load_tokens(x, start, end, head, static.heads, static.width, rows, static.chunk, static.whole)
