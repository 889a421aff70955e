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
read states and updates. No loop adds two products to one sum: of chained products Triton gives a warp whole rows, and
eight warps would hold each of 64 rows twice, and turn them there and back. States at the ends of a sequence are read as
they were given: in their product, a sum over a whole state, the roundings of a sequence of one token would be more than
is allowed.
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
from attn_tune.kernels.lang.triton.chunks.states import load_some
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
    columns = min(config.gradient_columns, static.block_h)
    tiles = -(-static.width // columns)
    numbers = jax.ShapeDtypeStruct((tiles, *o.v.shape[:3]), jnp.float32)
    options = {
        "grid": (static.slots * static.key_heads * tiles, 1, 1),
        "constexprs": {"columns": columns, "static": static},
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
    return dq, dk, jnp.sum(dg, axis=0), jnp.sum(dbeta, axis=0)


@triton.jit
def queries_kernel(
    q,
    k,
    g,
    cu_seqlens,
    dout,
    states,
    updates,
    rests,
    decays,
    dq,
    shares,
    weights,
    columns: tl.constexpr,
    static: tl.constexpr,
):
    """One program per chunk, key head and tile of channels: ``dq``, ``w``, shares of ``dg``."""
    tile, key_head, slot, rows = place_of(columns, static)
    sequence, start, end = chunk_of(cu_seqlens, slot, static)
    shares += numbers_before(tile, static)
    if start < end:
        acc = tl.full([static.chunk, columns], 0, tl.float32)
        if sequence >= 0:
            arrays = (q, k, g, dout, states, updates, rests, decays, weights)
            for member in tl.range(0, static.group, num_stages=1):
                head = key_head * static.group + member
                acc, share = query_gradients(arrays, acc, tile, slot, start, end, head, rows, columns, static)
                store_numbers(shares, share, start, end, head, static)
        store_tokens(dq, acc, start, end, key_head, static.key_heads, static.width, rows, static.chunk)


@triton.jit
def query_gradients(arrays, acc, tile, slot, start, end, head, rows, columns: tl.constexpr, static: tl.constexpr):
    """``acc`` and the part of ``dq`` of one value head, and what its outputs add to the gradients of ``G``."""
    q, k, g, dout, states, updates, rests, decays, weights = arrays
    index = slot * static.heads + head
    chunk: tl.constexpr = static.chunk
    precision: tl.constexpr = static.precision
    before = tl.load(decays + index.to(tl.int64) * (2 * chunk) + tl.arange(0, chunk))
    of_q = tl.full([chunk, columns], 0, tl.float32)
    w = tl.full([chunk, chunk], 0, tl.float32)
    of_rests = tl.full([chunk, chunk], 0, tl.float32)
    for first in tl.range(0, static.tiles * static.block_v, static.block_v):
        cols = first + tl.arange(0, static.block_v)
        dout_tile = load_values(dout, start, end, head, cols, static)
        u_tile = load_values(updates, start, end, head, cols, static)
        state = load_some(states, index, rows, cols, static)
        of_q = tl.dot(dout_tile, tl.trans(state), of_q, input_precision=precision)
        w = tl.dot(dout_tile, tl.trans(u_tile), w, input_precision=precision)
        if not static.is_wide:
            rest = load_values(rests, start, end, head, cols, static)
            of_rests = tl.dot(dout_tile, tl.trans(rest), of_rests)
    gates, resets = log_gates(g, start, end, head, static)
    k_tile = load_keys(k, start, end, head, tl.arange(0, static.block_h), static)
    q_tile = load_keys(q, start, end, head, tl.arange(0, static.block_h), static)
    w = (w + of_rests) * decays_between(gates, resets, False, static) * static.scale
    pairs = w * tl.dot(q_tile, tl.trans(k_tile), input_precision=precision)
    w = w.to(k_tile.dtype)
    # Other tiles of channels make the same.
    if tile == 0:
        store_lower(weights, index, w, static)
    share = tl.where(tile == 0, tl.sum(pairs, 1) - tl.sum(pairs, 0), 0.0)
    of_q *= (before * static.scale)[:, None]
    share += tl.sum(load_keys(q, start, end, head, rows, static).to(tl.float32) * of_q, 1)
    of_q = tl.dot(w, load_keys(k, start, end, head, rows, static), of_q, input_precision=precision)
    return acc + of_q, share


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
    columns: tl.constexpr,
    static: tl.constexpr,
):
    """One program per chunk, key head and tile of channels: ``dk``, and its share of ``dg`` and ``dbeta``."""
    tile, key_head, slot, rows = place_of(columns, static)
    sequence, start, end = chunk_of(cu_seqlens, slot, static)
    own = numbers_before(tile, static)
    shares += own
    dg += own
    dbeta += own
    if start < end:
        acc = tl.full([static.chunk, columns], 0, tl.float32)
        arrays = (q, k, v, g, beta, weights, states, updates, rests, state_gradients, update_gradients, decays)
        for member in tl.range(0, static.group, num_stages=1):
            head = key_head * static.group + member
            gate = tl.full([static.chunk], 0, tl.float32)
            strength = tl.full([static.chunk], 0, tl.float32)
            if sequence >= 0:
                share = load_numbers(shares, start, end, head, static.heads, static.chunk, 0.0)
                acc, gate, strength, carried = key_gradients(
                    arrays, acc, share, tile, slot, start, end, head, rows, columns, static
                )
                first = tl.load(cu_seqlens + sequence) if static.ragged else sequence * static.length
                if (start == first) | (start + static.chunk >= end):
                    given = (initial_state, dstate, start == first, start + static.chunk >= end)
                    carried = at_ends(given, states, state_gradients, slot, sequence, head, rows, columns, static)
                index = (slot * static.heads + head).to(tl.int64)
                gate += carried * tl.load(decays + index * (2 * static.chunk) + static.chunk - 1)
                if g is not None:
                    is_reset = load_numbers(g, start, end, head, static.heads, static.chunk, 0.0) < RESET
                    gate = tl.where(is_reset, 0.0, gate)
            store_numbers(dg, gate, start, end, head, static)
            store_numbers(dbeta, strength, start, end, head, static)
        store_tokens(dk, acc, start, end, key_head, static.key_heads, static.width, rows, static.chunk)


@triton.jit
def key_gradients(arrays, acc, logs, tile, slot, start, end, head, rows, columns: tl.constexpr, static: tl.constexpr):
    """``acc`` and the part of ``dk`` of one value head; its ``dg`` without the states' product, ``dbeta``, and that.

    What rows and columns of ``z`` give is found one after the other: both together would not fit the registers.

    Args:
      logs: the share of ``query_gradients``.
    """
    q, k, v, g, beta, weights, states, updates, rests, state_gradients, update_gradients, decays = arrays
    index = slot * static.heads + head
    chunk: tl.constexpr = static.chunk
    precision: tl.constexpr = static.precision
    decays += index.to(tl.int64) * (2 * chunk)
    before = tl.load(decays + tl.arange(0, chunk))
    row = tl.arange(0, chunk)[:, None]
    col = tl.arange(0, chunk)[None, :]
    weight = tl.full([chunk], 1.0, tl.float32)
    if beta is not None:
        weight = load_numbers(beta, start, end, head, static.heads, chunk, 0.0)

    wt = tl.trans(load_lower(weights, index, chunk))
    acc = tl.dot(wt, load_keys(q, start, end, head, rows, static), acc, input_precision=precision)
    of_rows = tl.full([chunk, columns], 0, tl.float32)
    z = tl.full([chunk, chunk], 0, tl.float32)
    of_rests = tl.full([chunk, chunk], 0, tl.float32)
    strength = tl.full([chunk], 0, tl.float32)
    for first in tl.range(0, static.tiles * static.block_v, static.block_v):
        cols = first + tl.arange(0, static.block_v)
        y_tile = load_values(update_gradients, start, end, head, cols, static)
        u_tile = load_values(updates, start, end, head, cols, static)
        v_tile = load_values(v, start, end, head, cols, static)
        state = load_some(states, index, rows, cols, static)
        of_rows = tl.dot(y_tile, tl.trans(state), of_rows, input_precision=precision)
        z = tl.dot(y_tile, tl.trans(u_tile), z, input_precision=precision)
        if not static.is_wide:
            rest = load_values(rests, start, end, head, cols, static)
            of_rests = tl.dot(y_tile, tl.trans(rest), of_rests)
        strength += tl.sum(y_tile.to(tl.float32) * v_tile.to(tl.float32), 1)
    gates, resets = log_gates(g, start, end, head, static)
    k_tile = load_keys(k, start, end, head, tl.arange(0, static.block_h), static)
    z = tl.where(row > col, -(z + of_rests) * decays_between(gates, resets, False, static), 0.0)
    pairs = z * tl.dot(k_tile, tl.trans(k_tile), input_precision=precision) * weight[:, None]
    of_rows *= -before[:, None]
    # Other tiles of channels make the same.
    logs += tl.where(tile == 0, tl.sum(pairs, 1) - tl.sum(pairs, 0), 0.0)
    k_tile = load_keys(k, start, end, head, rows, static)
    logs += weight * tl.sum(k_tile.to(tl.float32) * of_rows, 1)
    of_rows = tl.dot(z.to(k_tile.dtype), k_tile, of_rows, input_precision=precision)
    strength = tl.where(tile == 0, strength, 0.0) + tl.sum(k_tile.to(tl.float32) * of_rows, 1)
    acc += weight[:, None] * of_rows

    of_cols = tl.full([chunk, columns], 0, tl.float32)
    # Transposed, by a product of its own: on Hopper some versions of Triton turn registers wrongly.
    z = tl.full([chunk, chunk], 0, tl.float32)
    carried = tl.full([columns], 0, tl.float32)
    for first in tl.range(0, static.tiles * static.block_v, static.block_v):
        cols = first + tl.arange(0, static.block_v)
        y_tile = load_values(update_gradients, start, end, head, cols, static)
        u_tile = load_values(updates, start, end, head, cols, static)
        later = load_some(state_gradients, index, rows, cols, static)
        of_cols = tl.dot(u_tile, tl.trans(later), of_cols, input_precision=precision)
        z = tl.dot(u_tile, tl.trans(y_tile), z, input_precision=precision)
        if not static.is_wide and u_tile.dtype == tl.float16:
            # Less is allowed of it.
            of_cols = tl.dot(load_values(rests, start, end, head, cols, static), tl.trans(later), of_cols)
        state = load_some(states, index, rows, cols, static)
        carried += tl.sum(state.to(tl.float32) * later.to(tl.float32), 1)
    # Read again: held until here, they and the decays would be spilled.
    gates, resets = log_gates(g, start, end, head, static)
    k_tile = load_keys(k, start, end, head, rows, static)
    z = tl.where(row < col, -z * decays_between(gates, resets, True, static) * weight[None, :], 0.0)
    of_cols *= tl.load(decays + chunk + tl.arange(0, chunk))[:, None]
    to_end = tl.sum(k_tile.to(tl.float32) * of_cols, 1)
    logs -= to_end
    of_cols = tl.dot(z.to(k_tile.dtype), k_tile, of_cols, input_precision=precision)
    gate = tl.sum(to_end, 0) + tl.sum(logs, 0) - tl.cumsum(logs, 0) + logs
    return acc + of_cols, gate, strength, tl.sum(carried, 0)


@triton.jit
def at_ends(given, states, state_gradients, slot, sequence, head, rows, columns: tl.constexpr, static: tl.constexpr):
    """The sum over the products of a state and its gradient, either read as it was given where it is a sequence's."""
    initial_state, dstate, is_first, is_last = given
    index, own = slot * static.heads + head, sequence * static.heads + head
    total = tl.full([columns], 0, tl.float32)
    for first in tl.range(0, static.tiles * static.block_v, static.block_v, num_stages=1):
        cols = first + tl.arange(0, static.block_v)
        state = load_some(states, index, rows, cols, static).to(tl.float32)
        later = load_some(state_gradients, index, rows, cols, static).to(tl.float32)
        if initial_state is not None:
            state = tl.where(is_first, load_some(initial_state, own, rows, cols, static), state)
        if dstate is not None:
            later = tl.where(is_last, load_some(dstate, own, rows, cols, static), later)
        total += tl.sum(state * later, 1)
    return tl.sum(total, 0)


@triton.jit
def place_of(columns: tl.constexpr, static: tl.constexpr):
    """The tile of channels of a program, its key head, the place of its chunk, and the channels."""
    tiles: tl.constexpr = (static.width + columns - 1) // columns
    tile = tl.program_id(0) % tiles
    key_head = tl.program_id(0) // tiles % static.key_heads
    return tile, key_head, tl.program_id(0) // (tiles * static.key_heads), tile * columns + tl.arange(0, columns)


@triton.jit
def numbers_before(tile, static: tl.constexpr):
    """The offset of the numbers of a tile of channels, of which each has one a token."""
    tokens: tl.constexpr = static.length if static.ragged else static.batch * static.length
    return tile.to(tl.int64) * (tokens * static.heads)


@triton.jit
def load_keys(x, start, end, head, rows, static: tl.constexpr):
    """Some channels of the queries or keys of a chunk that a value head has."""
    key_head = head // static.group
    return load_tokens(x, start, end, key_head, static.key_heads, static.width, rows, static.chunk, static.whole)


@triton.jit
def load_values(x, start, end, head, cols, static: tl.constexpr):
    """Some columns of the values of a chunk, or of what is like them."""
    return load_tokens(x, start, end, head, static.heads, static.v_width, cols, static.chunk, static.whole)


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
