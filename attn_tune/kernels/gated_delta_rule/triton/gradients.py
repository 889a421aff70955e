"""The launches that differentiate chunks, each by itself, once the states on both sides and their gradients are known.

With ``w[i, j] = scale D[i, j] (dout[i] . u[j])`` and ``z[i, j] = -D[i, j] (y[i] . u[j])`` (``backward_scan.py``) the
gradients of queries and keys have three parts, of each of which the gates get their share::

    dq[i]    = scale f[i] S dout[i] + sum over j <= i of w[i, j] k[j]
    row[i]   = -f[i] S y[i] + sum over j < i of z[i, j] k[j]
    col[j]   = e[j] dS' u[j] + sum over i of w[i, j] q[i] + beta[i] z[i, j] k[i]
    dk[i]    = beta[i] row[i] + col[i]
    dbeta[i] = y[i] . v[i] + k[i] . row[i]

The logarithm ``G[i]`` of ``f[i]`` gets ``q . dq + beta k . row - k . col``, the last one also what decays from the
start or to the end of the chunk; the gradient of a gate is the sum over it and all later tokens. There the terms of two
tokens cancel, so those of ``w`` and ``z`` are added up in float32 before these are rounded for products.

There are two launches: the sums of one alone would not fit the registers. The first leaves ``w`` to the second. Both
read states and updates. States at the ends of a sequence are read as they were given: in their product, a sum over a
whole state, the roundings of a sequence of one token would be more than is allowed.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.gated_delta_rule.triton.backward_scan import Kept, Walked
from attn_tune.kernels.gated_delta_rule.triton.config import BackwardConfig
from attn_tune.kernels.gated_delta_rule.triton.prepare import log_gates
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.decays import RESET, decays_between
from attn_tune.kernels.lang.triton.chunks.states import load_state
from attn_tune.kernels.lang.triton.chunks.static import (
    Static,
    chunk_of,
    load_lower,
    load_numbers,
    load_tokens,
    store_tokens,
)
from attn_tune.ops.gated_delta_rule.operands import BackwardInputs


def differentiate(
    inputs: BackwardInputs, kept: Kept, walked: Walked, decays: jax.Array, config: BackwardConfig, static: Static
) -> tuple[jax.Array, ...]:
    """``dq``, ``dk``, ``dg`` and ``dbeta``."""
    o = inputs.operands
    numbers = jax.ShapeDtypeStruct(o.v.shape[:3], jnp.float32)
    options = {
        "grid": (static.slots * static.key_heads, 1, 1),
        "constexprs": {"static": static},
        "num_warps": config.gradient_warps,
        "num_stages": config.gradient_stages,
    }
    matrices = jax.ShapeDtypeStruct((static.slots, static.heads, static.chunk, static.chunk), o.q.dtype)
    dq, shares, weights = triton_call(
        queries_kernel,
        o.q,
        o.k,
        o.g,
        o.cu_seqlens,
        inputs.dout,
        *kept,
        decays,
        out_types=[jax.ShapeDtypeStruct(o.q.shape, o.q.dtype), numbers, matrices],
        name="gated_delta_rule_bwd_queries",
        **options,
    )
    dk, dg, dbeta = triton_call(
        keys_kernel,
        o.q,
        o.k,
        o.v,
        o.g,
        o.beta,
        o.initial_state,
        inputs.dstate,
        o.cu_seqlens,
        weights,
        *kept,
        walked.state_gradients,
        walked.update_gradients,
        decays,
        shares,
        out_types=[jax.ShapeDtypeStruct(o.k.shape, o.k.dtype), numbers, numbers],
        name="gated_delta_rule_bwd_keys",
        **options,
    )
    return dq, dk, dg, dbeta


@triton.jit
def queries_kernel(
    q, k, g, cu_seqlens, dout, states, updates, rests, decays, dq, shares, weights, static: tl.constexpr
):
    """One program per chunk and key head, which takes the value heads of its group in turn: dq, ``w``, shares of dg."""
    key_head = tl.program_id(0) % static.key_heads
    slot = tl.program_id(0) // static.key_heads
    sequence, start, end = chunk_of(cu_seqlens, slot, static)
    rows = tl.arange(0, static.block_h)
    if start < end:
        acc = tl.full([static.chunk, static.block_h], 0, tl.float32)
        if sequence >= 0:
            arrays = (q, k, g, dout, states, updates, rests, decays, weights)
            for member in tl.range(0, static.group, num_stages=1):
                head = key_head * static.group + member
                more, share = query_gradients(arrays, slot, start, end, head, static)
                acc += more
                store_numbers(shares, share, start, end, head, static)
        store_tokens(dq, acc, start, end, key_head, static.key_heads, static.width, rows, static.chunk)


@triton.jit
def query_gradients(arrays, slot, start, end, head, static: tl.constexpr):
    """The part of ``dq`` of one value head, and what its outputs add to the gradients of ``G``; stores ``w``."""
    q, k, g, dout, states, updates, rests, decays, weights = arrays
    index = slot * static.heads + head
    chunk: tl.constexpr = static.chunk
    precision: tl.constexpr = static.precision
    before = tl.load(decays + index.to(tl.int64) * (2 * chunk) + tl.arange(0, chunk))
    acc = tl.full([chunk, static.block_h], 0, tl.float32)
    w = tl.full([chunk, chunk], 0, tl.float32)
    for first in tl.range(0, static.tiles * static.block_v, static.block_v):
        cols = first + tl.arange(0, static.block_v)
        dout_tile = load_tokens(dout, start, end, head, static.heads, static.v_width, cols, chunk, static.whole)
        u_tile = load_tokens(updates, start, end, head, static.heads, static.v_width, cols, chunk, static.whole)
        state = load_held(states, index, cols, static)
        acc = tl.dot(dout_tile, tl.trans(state), acc, input_precision=precision)
        w = tl.dot(dout_tile, tl.trans(u_tile), w, input_precision=precision)
        if not static.is_wide:
            rest = load_tokens(rests, start, end, head, static.heads, static.v_width, cols, chunk, static.whole)
            w = tl.dot(dout_tile, tl.trans(rest), w)
    gates, resets = log_gates(g, start, end, head, static)
    k_tile = load_keys(k, start, end, head, static)
    q_tile = load_keys(q, start, end, head, static)
    w *= decays_between(gates, resets, False, static) * static.scale
    pairs = w * tl.dot(q_tile, tl.trans(k_tile), input_precision=precision)
    w = w.to(k_tile.dtype)
    store_lower(weights, index, w, static)
    acc *= (before * static.scale)[:, None]
    share = tl.sum(q_tile.to(tl.float32) * acc, 1) + tl.sum(pairs, 1) - tl.sum(pairs, 0)
    return tl.dot(w, k_tile, acc, input_precision=precision), share


@triton.jit
def keys_kernel(
    q,
    k,
    v,
    g,
    beta,
    initial_state,
    dstate,
    cu_seqlens,
    weights,
    states,
    updates,
    rests,
    state_gradients,
    update_gradients,
    decays,
    shares,
    dk,
    dg,
    dbeta,
    static: tl.constexpr,
):
    """One program per chunk and key head, which takes the value heads of its group in turn: dk, dg and dbeta."""
    key_head = tl.program_id(0) % static.key_heads
    slot = tl.program_id(0) // static.key_heads
    sequence, start, end = chunk_of(cu_seqlens, slot, static)
    rows = tl.arange(0, static.block_h)
    if start < end:
        acc = tl.full([static.chunk, static.block_h], 0, tl.float32)
        arrays = (q, k, v, g, beta, weights, states, updates, rests, state_gradients, update_gradients, decays)
        for member in tl.range(0, static.group, num_stages=1):
            head = key_head * static.group + member
            gate = tl.full([static.chunk], 0, tl.float32)
            strength = tl.full([static.chunk], 0, tl.float32)
            if sequence >= 0:
                share = load_numbers(shares, start, end, head, static.heads, static.chunk, 0.0)
                more, gate, strength, carried = key_gradients(arrays, share, slot, start, end, head, static)
                first = tl.load(cu_seqlens + sequence) if static.ragged else sequence * static.length
                if (start == first) | (start + static.chunk >= end):
                    given = (initial_state, dstate, start == first, start + static.chunk >= end)
                    carried = at_ends(given, states, state_gradients, slot, sequence, head, static)
                index = (slot * static.heads + head).to(tl.int64)
                gate += carried * tl.load(decays + index * (2 * static.chunk) + static.chunk - 1)
                if g is not None:
                    is_reset = load_numbers(g, start, end, head, static.heads, static.chunk, 0.0) < RESET
                    gate = tl.where(is_reset, 0.0, gate)
                acc += more
            store_numbers(dg, gate, start, end, head, static)
            store_numbers(dbeta, strength, start, end, head, static)
        store_tokens(dk, acc, start, end, key_head, static.key_heads, static.width, rows, static.chunk)


@triton.jit
def key_gradients(arrays, logs, slot, start, end, head, static: tl.constexpr):
    """The part of ``dk`` of one value head; its ``dg`` without the states' product, ``dbeta``, and that product.

    Args:
      logs: the share of ``query_gradients``.
    """
    q, k, v, g, beta, weights, states, updates, rests, state_gradients, update_gradients, decays = arrays
    index = slot * static.heads + head
    chunk: tl.constexpr = static.chunk
    precision: tl.constexpr = static.precision
    decays += index.to(tl.int64) * (2 * chunk)
    before = tl.load(decays + tl.arange(0, chunk))
    after = tl.load(decays + chunk + tl.arange(0, chunk))

    of_rows = tl.full([chunk, static.block_h], 0, tl.float32)
    of_cols = tl.full([chunk, static.block_h], 0, tl.float32)
    z = tl.full([chunk, chunk], 0, tl.float32)
    # Transposed, by a product of its own: on Hopper some versions of Triton turn registers wrongly.
    zt = tl.full([chunk, chunk], 0, tl.float32)
    strength = tl.full([chunk], 0, tl.float32)
    carried = tl.full([static.block_h], 0, tl.float32)
    for first in tl.range(0, static.tiles * static.block_v, static.block_v):
        cols = first + tl.arange(0, static.block_v)
        u_tile = load_tokens(updates, start, end, head, static.heads, static.v_width, cols, chunk, static.whole)
        y_tile = load_tokens(
            update_gradients, start, end, head, static.heads, static.v_width, cols, chunk, static.whole
        )
        v_tile = load_tokens(v, start, end, head, static.heads, static.v_width, cols, chunk, static.whole)
        state = load_held(states, index, cols, static)
        later = load_held(state_gradients, index, cols, static)
        of_rows = tl.dot(y_tile, tl.trans(state), of_rows, input_precision=precision)
        of_cols = tl.dot(u_tile, tl.trans(later), of_cols, input_precision=precision)
        z = tl.dot(y_tile, tl.trans(u_tile), z, input_precision=precision)
        zt = tl.dot(u_tile, tl.trans(y_tile), zt, input_precision=precision)
        if not static.is_wide:
            rest = load_tokens(rests, start, end, head, static.heads, static.v_width, cols, chunk, static.whole)
            z = tl.dot(y_tile, tl.trans(rest), z)
            if rest.dtype == tl.float16:
                # Less is allowed of it.
                of_cols = tl.dot(rest, tl.trans(later), of_cols)
        strength += tl.sum(y_tile.to(tl.float32) * v_tile.to(tl.float32), 1)
        carried += tl.sum(state.to(tl.float32) * later.to(tl.float32), 1)

    gates, resets = log_gates(g, start, end, head, static)
    row = tl.arange(0, chunk)[:, None]
    col = tl.arange(0, chunk)[None, :]
    weight = tl.full([chunk], 1.0, tl.float32)
    if beta is not None:
        weight = load_numbers(beta, start, end, head, static.heads, chunk, 0.0)
    k_tile = load_keys(k, start, end, head, static)
    q_tile = load_keys(q, start, end, head, static)
    z = tl.where(row > col, -z * decays_between(gates, resets, False, static), 0.0)
    pairs = z * tl.dot(k_tile, tl.trans(k_tile), input_precision=precision) * weight[:, None]
    logs += tl.sum(pairs, 1) - tl.sum(pairs, 0)
    zt = tl.where(row < col, -zt * decays_between(gates, resets, True, static) * weight[None, :], 0.0)

    keys = k_tile.to(tl.float32)
    of_rows *= -before[:, None]
    of_cols *= after[:, None]
    to_end = tl.sum(keys * of_cols, 1)
    logs += weight * tl.sum(keys * of_rows, 1) - to_end
    of_rows = tl.dot(z.to(k_tile.dtype), k_tile, of_rows, input_precision=precision)
    wt = tl.trans(load_lower(weights, index, chunk))
    of_cols = tl.dot(wt, q_tile, of_cols, input_precision=precision)
    of_cols = tl.dot(zt.to(k_tile.dtype), k_tile, of_cols, input_precision=precision)
    known = tl.sum(keys * of_rows, 1)
    gate = tl.sum(to_end, 0) + tl.sum(logs, 0) - tl.cumsum(logs, 0) + logs
    return weight[:, None] * of_rows + of_cols, gate, strength + known, tl.sum(carried, 0)


@triton.jit
def at_ends(given, states, state_gradients, slot, sequence, head, static: tl.constexpr):
    """The sum over the products of a state and its gradient, either read as it was given where it is a sequence's."""
    initial_state, dstate, is_first, is_last = given
    index, own = slot * static.heads + head, sequence * static.heads + head
    total = tl.full([static.block_h], 0, tl.float32)
    for first in tl.range(0, static.tiles * static.block_v, static.block_v, num_stages=1):
        cols = first + tl.arange(0, static.block_v)
        state = load_state(states, index, cols, static)
        later = load_state(state_gradients, index, cols, static)
        if initial_state is not None:
            state = tl.where(is_first, load_state(initial_state, own, cols, static), state)
        if dstate is not None:
            later = tl.where(is_last, load_state(dstate, own, cols, static), later)
        total += tl.sum(state * later, 1)
    return tl.sum(total, 0)


@triton.jit
def load_keys(x, start, end, head, static: tl.constexpr):
    """The queries or keys of a chunk that a value head has."""
    rows = tl.arange(0, static.block_h)
    key_head = head // static.group
    return load_tokens(x, start, end, key_head, static.key_heads, static.width, rows, static.chunk, static.whole)


@triton.jit
def load_held(states, index, cols, static: tl.constexpr):
    """Some columns of a state that was kept, in its dtype."""
    return load_state(states, index, cols, static).to(states.dtype.element_ty)


@triton.jit
def store_lower(x, place, values, static: tl.constexpr):
    """Stores the matrix of a chunk but for the blocks above the diagonal, which ``load_lower`` does not read."""
    row = tl.arange(0, static.chunk)[:, None]
    col = tl.arange(0, static.chunk)[None, :]
    base = x + place.to(tl.int64) * (static.chunk * static.chunk)
    tl.store(base + row * static.chunk + col, values, mask=row // 16 >= col // 16)


@triton.jit
def store_numbers(x, values, start, end, head, static: tl.constexpr):
    """Stores a chunk's numbers of one head, those of tokens before ``end``."""
    token = start + tl.arange(0, static.chunk)
    tl.store(x + token.to(tl.int64) * static.heads + head, values, mask=token < end)
