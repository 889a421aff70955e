"""The launch that differentiates chunks with at most one gate a token, once the states on both sides are known.

With ``w[i, j] = scale D[i, j] (dout[i] . v[j])`` for ``j <= i``, and ``D``, ``f``, ``e`` as in ``scan.py``::

    dq[i] = scale f[i] S dout[i] + sum over j <= i of w[i, j] k[j]
    dk[j] = e[j] dS' v[j] + sum over i >= j of w[i, j] q[i]
    dv[j] = e[j] dS'^T k[j] + scale sum over i >= j of D[i, j] (q[i] . k[j]) dout[i]

The gradient of the logarithm ``G[i]`` of ``f[i]`` is ``q . dq - k . dk``, and at the end of the chunk also what decays
until there; that of a gate is the sum over its token and all later ones. There the terms of two tokens cancel: those of
``w`` are added up in float32, each as often with one sign as with the other. Those of a state or its gradient come from
both parts in which these are kept: they may add up to a tenth of their size and less, over all tokens if the gate is
constant, and roundings to the working dtype would be more than the error that is allowed.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportIndexIssue=false

from typing import Any

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.decays import decays_between
from attn_tune.kernels.lang.triton.chunks.states import load_state
from attn_tune.kernels.lang.triton.chunks.static import chunk_of, store_tokens
from attn_tune.kernels.lang.triton.linear.config import BackwardConfig
from attn_tune.kernels.lang.triton.linear.scan import load_keys, load_values
from attn_tune.kernels.lang.triton.linear.static import (
    Static,
    decays_from_start,
    decays_to_end,
    log_gates,
)
from attn_tune.kernels.lang.triton.linear.walks import Walked


def differentiate(
    operands: Any, dout: jax.Array, walked: Walked, config: BackwardConfig, static: Static
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """``dq``, ``dk``, ``dv``, and the gradient of each token's gate ``[R, T, N]``."""
    o = operands
    dq, dk, dv, dg = triton_call(
        gradients_kernel,
        o.q,
        o.k,
        o.v,
        o.g,
        o.cu_seqlens,
        dout,
        walked.states,
        walked.gradients,
        out_types=[
            jax.ShapeDtypeStruct(o.q.shape, o.q.dtype),
            jax.ShapeDtypeStruct(o.k.shape, o.k.dtype),
            jax.ShapeDtypeStruct(o.v.shape, o.v.dtype),
            jax.ShapeDtypeStruct(o.v.shape[:3], jnp.float32),
        ],
        grid=(static.slots * static.key_heads, 1, 1),
        constexprs={"static": static},
        num_warps=config.gradient_warps,
        num_stages=config.gradient_stages,
        name="linear_attention_bwd_gradients",
    )
    return dq, dk, dv, dg


@triton.jit
def gradients_kernel(q, k, v, g, cu_seqlens, dout, states, gradients, dq, dk, dv, dg, static: tl.constexpr):
    """One program per chunk and key head, which takes the value heads of its group in turn."""
    key_head = tl.program_id(0) % static.key_heads
    slot = tl.program_id(0) // static.key_heads
    sequence, start, end = chunk_of(cu_seqlens, slot, static)
    chunk: tl.constexpr = static.chunk
    rows = tl.arange(0, static.block_h)
    if (sequence >= 0) & (start < end):
        arrays = (q, k, v, g, dout, states, gradients)
        if static.group == 1:
            of_q, of_k = member_gradients(arrays, dv, dg, slot, start, end, key_head, static)
        else:
            of_q = tl.full([chunk, static.block_h], 0, tl.float32)
            of_k = tl.full([chunk, static.block_h], 0, tl.float32)
            for member in tl.range(0, static.group, num_stages=1):
                head = key_head * static.group + member
                more_q, more_k = member_gradients(arrays, dv, dg, slot, start, end, head, static)
                of_q += more_q
                of_k += more_k
        store_tokens(dq, of_q, start, end, key_head, static.key_heads, static.width, rows, chunk)
        store_tokens(dk, of_k, start, end, key_head, static.key_heads, static.width, rows, chunk)
    elif start < end:
        zeros = tl.full([chunk, static.block_h], 0, tl.float32)
        store_tokens(dq, zeros, start, end, key_head, static.key_heads, static.width, rows, chunk)
        store_tokens(dk, zeros, start, end, key_head, static.key_heads, static.width, rows, chunk)
        token = start + tl.arange(0, chunk)
        for unused in tl.range(0, static.group, num_stages=1):
            own = key_head * static.group + unused
            store_zeros(dv, start, end, own, static)
            store_numbers(dg, tl.full([chunk], 0, tl.float32), token, end, own, static)


@triton.jit
def member_gradients(arrays, dv, dg, slot, start, end, head, static: tl.constexpr):
    """The parts of ``dq`` and ``dk`` of one value head; its ``dv`` and ``dg`` are stored."""
    q, k, v, g, dout, states, gradients = arrays
    index = slot * static.heads + head
    chunk: tl.constexpr = static.chunk
    precision: tl.constexpr = static.precision
    has_gate: tl.constexpr = static.gate != "none"
    q_tile = load_keys(q, start, end, head, static)
    k_tile = load_keys(k, start, end, head, static)
    # Transposed, by products of their own: on Hopper some versions of Triton turn registers wrongly.
    products = tl.dot(k_tile, tl.trans(q_tile), input_precision=precision)
    row = tl.arange(0, chunk)[:, None]
    col = tl.arange(0, chunk)[None, :]
    after = 1.0
    if has_gate:
        gates, resets = log_gates(g, start, end, head, static)
        after, _ = decays_to_end(gates, resets, static)
        mixed = products * decays_between(gates, resets, True, static)
    else:
        mixed = tl.where(row <= col, products, 0.0)
    mixed = mixed.to(k_tile.dtype)

    of_q = tl.full([chunk, static.block_h], 0, tl.float32)
    of_k = tl.full([chunk, static.block_h], 0, tl.float32)
    w = tl.full([chunk, chunk], 0, tl.float32)
    wt = tl.full([chunk, chunk], 0, tl.float32)
    for first in tl.range(0, static.tiles * static.block_v, static.block_v):
        cols = first + tl.arange(0, static.block_v)
        dout_tile = load_values(dout, start, end, head, cols, static)
        v_tile = load_values(v, start, end, head, cols, static)
        state = load_held(states, index * static.state_parts, cols, static)
        gradient = load_held(gradients, index * static.state_parts, cols, static)
        of_q = tl.dot(dout_tile, tl.trans(state), of_q, input_precision=precision)
        of_k = tl.dot(v_tile, tl.trans(gradient), of_k, input_precision=precision)
        w = tl.dot(dout_tile, tl.trans(v_tile), w, input_precision=precision)
        wt = tl.dot(v_tile, tl.trans(dout_tile), wt, input_precision=precision)
        of_v = tl.dot(k_tile, gradient, input_precision=precision)
        if has_gate:
            of_v *= after[:, None]
        of_v += tl.dot(mixed, dout_tile, input_precision=precision) * static.scale
        store_tokens(dv, of_v, start, end, head, static.heads, static.v_width, cols, chunk)

    if has_gate:
        of_q, of_k, kept = with_rests((dout, v, states, gradients), of_q, of_k, index, start, end, head, static)
    # Read again: held until here, they and the decays would be spilled.
    q_tile = load_keys(q, start, end, head, static)
    k_tile = load_keys(k, start, end, head, static)
    of_q *= static.scale
    if has_gate:
        gates, resets = log_gates(g, start, end, head, static)
        after, factor = decays_to_end(gates, resets, static)
        of_q *= decays_from_start(gates, resets)[:, None]
        of_k *= after[:, None]
        w *= decays_between(gates, resets, False, static) * static.scale
        wt *= decays_between(gates, resets, True, static) * static.scale
        pairs = wt * tl.dot(k_tile, tl.trans(q_tile), input_precision=precision)
        to_end = tl.sum(k_tile.to(tl.float32) * of_k, 1)
        logs = tl.sum(pairs, 0) - tl.sum(pairs, 1) + tl.sum(q_tile.to(tl.float32) * of_q, 1) - to_end
        gate = tl.sum(to_end, 0) + factor * kept + tl.sum(logs, 0) - tl.cumsum(logs, 0) + logs
        gate = tl.where(resets > 0, 0.0, gate)
        token = start + tl.arange(0, chunk)
        store_numbers(dg, gate, token, end, head, static)
    else:
        w = tl.where(row >= col, w * static.scale, 0.0)
        wt = tl.where(row <= col, wt * static.scale, 0.0)
    of_q = tl.dot(w.to(k_tile.dtype), k_tile, of_q, input_precision=precision)
    of_k = tl.dot(wt.to(k_tile.dtype), q_tile, of_k, input_precision=precision)
    return of_q, of_k


@triton.jit
def with_rests(arrays, of_q, of_k, index, start, end, head, static: tl.constexpr):
    """``of_q`` and ``of_k`` with what the second parts of states give, and the sum over a state times its gradient.

    In a loop of their own: with two products added to one sum in a loop, eight warps would hold the sum twice.
    """
    dout, v, states, gradients = arrays
    kept = tl.full([static.block_h], 0, tl.float32)
    for first in tl.range(0, static.tiles * static.block_v, static.block_v):
        cols = first + tl.arange(0, static.block_v)
        state = load_state(states, index * static.state_parts, cols, static)
        gradient = load_state(gradients, index * static.state_parts, cols, static)
        if static.state_parts == 2:
            rest = load_held(states, index * 2 + 1, cols, static)
            of_q = tl.dot(load_values(dout, start, end, head, cols, static), tl.trans(rest), of_q)
            state += rest.to(tl.float32)
            rest = load_held(gradients, index * 2 + 1, cols, static)
            of_k = tl.dot(load_values(v, start, end, head, cols, static), tl.trans(rest), of_k)
            gradient += rest.to(tl.float32)
        kept += tl.sum(state * gradient, 1)
    return of_q, of_k, tl.sum(kept, 0)


@triton.jit
def load_held(states, index, cols, static: tl.constexpr):
    """Some columns of a state that was kept, in its dtype."""
    return load_state(states, index, cols, static).to(states.dtype.element_ty)


@triton.jit
def store_numbers(x, values, token, end, head, static: tl.constexpr):
    """Stores the numbers of tokens of one head, those before ``end``."""
    tl.store(x + token.to(tl.int64) * static.heads + head, values, mask=token < end)


@triton.jit
def store_zeros(dv, start, end, head, static: tl.constexpr):
    """Stores zeros for the tokens of a chunk of one head, those before ``end``."""
    zeros = tl.full([static.chunk, static.block_v], 0, tl.float32)
    for first in tl.range(0, static.tiles * static.block_v, static.block_v):
        cols = first + tl.arange(0, static.block_v)
        store_tokens(dv, zeros, start, end, head, static.heads, static.v_width, cols, static.chunk)
