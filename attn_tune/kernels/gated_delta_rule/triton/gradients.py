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

What pairs of tokens give stands alone (``pairs.py``): ``w`` and ``beta z`` are found once, and no launch holds them
beside the sums over states. Two launches follow, for the queries and for the keys; each reads its states once. No loop
adds two products to one sum: of chained products Triton gives a warp whole rows, and eight warps would hold each of 64
rows twice, and turn them there and back. States at the ends of a sequence are read as they were given: in their
product, a sum over a whole state, the roundings of a sequence of one token would be more than is allowed.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from typing import Any

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.gated_delta_rule._triton.walked import Kept, Walked
from attn_tune.kernels.gated_delta_rule.triton.config import BackwardConfig
from attn_tune.kernels.gated_delta_rule.triton.pairs import Pairs, load_keys, load_values, pair, store_numbers
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.decays import RESET
from attn_tune.kernels.lang.triton.chunks.states import load_some
from attn_tune.kernels.lang.triton.chunks.static import (
    Static,
    chunk_of,
    load_lower,
    load_numbers,
    store_tokens,
)
from attn_tune.ops.gated_delta_rule.operands import BackwardInputs


def differentiate(
    inputs: BackwardInputs, kept: Kept, walked: Walked, decays: jax.Array, config: BackwardConfig, static: Static
) -> tuple[jax.Array, ...]:
    """``dq``, ``dk``, ``dg`` and ``dbeta``."""
    pairs = pair(inputs, kept, walked, config, static)
    dq, shares = differentiate_queries(inputs, kept, pairs, decays, config, static)
    return dq, *differentiate_keys(inputs, kept, walked, pairs, shares, decays, config, static)


def differentiate_queries(
    inputs: BackwardInputs, kept: Kept, pairs: Pairs, decays: jax.Array, config: BackwardConfig, static: Static
) -> tuple[jax.Array, jax.Array]:
    """``dq``, and what queries and pairs add to the gradients of ``G`` ``[tiles, R, T, N]``."""
    o = inputs.operands
    numbers, options = _launch(inputs, config, static)
    dq, shares = triton_call(
        queries_kernel,
        o.q,
        o.k,
        o.cu_seqlens,
        inputs.dout,
        kept.states,
        pairs.weights,
        pairs.shares,
        decays,
        out_types=[jax.ShapeDtypeStruct(o.q.shape, o.q.dtype), numbers],
        name="gated_delta_rule_bwd_queries",
        **options,
    )
    return dq, shares


def differentiate_keys(
    inputs: BackwardInputs,
    kept: Kept,
    walked: Walked,
    pairs: Pairs,
    shares: jax.Array,
    decays: jax.Array,
    config: BackwardConfig,
    static: Static,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``dk``, ``dg`` and ``dbeta``."""
    o = inputs.operands
    numbers, options = _launch(inputs, config, static)
    dk, dg, dbeta = triton_call(
        keys_kernel,
        o.q,
        o.k,
        o.g,
        o.beta,
        o.initial_state,
        inputs.dstate,
        o.cu_seqlens,
        pairs.weights,
        pairs.strengths,
        pairs.dbeta,
        *kept,
        walked.state_gradients,
        walked.update_gradients,
        decays,
        shares,
        out_types=[jax.ShapeDtypeStruct(o.k.shape, o.k.dtype), numbers, numbers],
        name="gated_delta_rule_bwd_keys",
        **options,
    )
    return dk, jnp.sum(dg, axis=0), jnp.sum(dbeta, axis=0)


def _launch(inputs: BackwardInputs, config: BackwardConfig, static: Static) -> tuple[jax.ShapeDtypeStruct, Any]:
    """Numbers of each tile of channels, token and head, and how the programs of such tiles are launched."""
    columns = min(config.gradient_columns, static.block_h)
    tiles = -(-static.width // columns)
    options = {
        "grid": (static.slots * static.key_heads * tiles, 1, 1),
        "constexprs": {"columns": columns, "static": static},
        "num_warps": config.gradient_warps,
        "num_stages": config.gradient_stages,
        "maxnreg": config.gradient_registers,
    }
    return jax.ShapeDtypeStruct((tiles, *inputs.operands.v.shape[:3]), jnp.float32), options


@triton.jit
def queries_kernel(
    q,
    k,
    cu_seqlens,
    dout,
    states,
    weights,
    pair_shares,
    decays,
    dq,
    shares,
    columns: tl.constexpr,
    static: tl.constexpr,
):
    """One program per chunk, key head and tile of channels: ``dq``, and its share of ``dg``."""
    tile, key_head, slot, rows = place_of(columns, static)
    sequence, start, end = chunk_of(cu_seqlens, slot, static)
    shares += numbers_before(tile, static)
    if start < end:
        acc = tl.full([static.chunk, columns], 0, tl.float32)
        if sequence >= 0:
            for member in tl.range(0, static.group, num_stages=1):
                head = key_head * static.group + member
                share = numbers_of_first(pair_shares, tile, start, end, head, static)
                arrays = (q, k, dout, states, weights, decays)
                acc, share = query_gradients(arrays, acc, share, slot, start, end, head, rows, columns, static)
                store_numbers(shares, share, start, end, head, static)
        store_tokens(dq, acc, start, end, key_head, static.key_heads, static.width, rows, static.chunk)


@triton.jit
def query_gradients(arrays, acc, share, slot, start, end, head, rows, columns: tl.constexpr, static: tl.constexpr):
    """``acc`` and ``share`` with the part of ``dq`` of one value head, and what that adds to gradients of ``G``."""
    q, k, dout, states, weights, decays = arrays
    index = slot * static.heads + head
    before = tl.load(decays + index.to(tl.int64) * (2 * static.chunk) + tl.arange(0, static.chunk))
    of_q = tl.full([static.chunk, columns], 0, tl.float32)
    for first in tl.range(0, static.tiles * static.block_v, static.block_v):
        cols = first + tl.arange(0, static.block_v)
        state = load_some(states, index, rows, cols, static)
        dout_tile = load_values(dout, start, end, head, cols, static)
        of_q = tl.dot(dout_tile, tl.trans(state), of_q, input_precision=static.precision)
    of_q *= (before * static.scale)[:, None]
    share += tl.sum(load_keys(q, start, end, head, rows, static).to(tl.float32) * of_q, 1)
    w = load_lower(weights, index, static.chunk)
    of_q = tl.dot(w, load_keys(k, start, end, head, rows, static), of_q, input_precision=static.precision)
    return acc + of_q, share


@triton.jit
def keys_kernel(
    q,
    k,
    g,
    beta,
    initial_state,
    dstate,
    cu_seqlens,
    weights,
    strengths,
    pair_dbeta,
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
        arrays = (q, k, beta, weights, strengths, states, updates, rests, state_gradients, update_gradients, decays)
        for member in tl.range(0, static.group, num_stages=1):
            head = key_head * static.group + member
            gate = tl.full([static.chunk], 0, tl.float32)
            strength = tl.full([static.chunk], 0, tl.float32)
            if sequence >= 0:
                share = load_numbers(shares, start, end, head, static.heads, static.chunk, 0.0)
                acc, gate, strength, carried = key_gradients(
                    arrays, acc, share, slot, start, end, head, rows, columns, static
                )
                strength += numbers_of_first(pair_dbeta, tile, start, end, head, static)
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
def key_gradients(arrays, acc, logs, slot, start, end, head, rows, columns: tl.constexpr, static: tl.constexpr):
    """``acc`` and the part of ``dk`` of one value head; its ``dg`` without the states' product, ``dbeta``, and that.

    Args:
      logs: the share of ``query_gradients``.
    """
    q, k, beta, weights, strengths, states, updates, rests, state_gradients, update_gradients, decays = arrays
    index = slot * static.heads + head
    chunk: tl.constexpr = static.chunk
    precision: tl.constexpr = static.precision
    decays += index.to(tl.int64) * (2 * chunk)

    of_rows = tl.full([chunk, columns], 0, tl.float32)
    of_cols = tl.full([chunk, columns], 0, tl.float32)
    carried = tl.full([columns], 0, tl.float32)
    for first in tl.range(0, static.tiles * static.block_v, static.block_v):
        cols = first + tl.arange(0, static.block_v)
        state = load_some(states, index, rows, cols, static)
        later = load_some(state_gradients, index, rows, cols, static)
        y_tile = load_values(update_gradients, start, end, head, cols, static)
        u_tile = load_values(updates, start, end, head, cols, static)
        of_rows = tl.dot(y_tile, tl.trans(state), of_rows, input_precision=precision)
        of_cols = tl.dot(u_tile, tl.trans(later), of_cols, input_precision=precision)
        if not static.is_wide and u_tile.dtype == tl.float16:
            # Less is allowed of it.
            rest = load_values(rests, start, end, head, cols, static)
            of_cols = tl.dot(rest, tl.trans(later), of_cols)
        carried += tl.sum(state.to(tl.float32) * later.to(tl.float32), 1)

    k_tile = load_keys(k, start, end, head, rows, static)
    of_rows *= -tl.load(decays + tl.arange(0, chunk))[:, None]
    of_cols *= tl.load(decays + chunk + tl.arange(0, chunk))[:, None]
    strength = tl.sum(k_tile.to(tl.float32) * of_rows, 1)
    to_end = tl.sum(k_tile.to(tl.float32) * of_cols, 1)
    logs -= to_end
    if beta is None:
        logs += strength
    else:
        weight = load_numbers(beta, start, end, head, static.heads, chunk, 0.0)
        logs += weight * strength
        of_rows *= weight[:, None]
    # ``z`` has its strengths already. Its rows, its columns and those of ``w`` are added to one sum each.
    z = load_lower(strengths, index, chunk)
    of_rows = tl.dot(z, k_tile, of_rows, input_precision=precision)
    of_cols = tl.dot(tl.trans(z), k_tile, of_cols, input_precision=precision)
    w = load_lower(weights, index, chunk)
    acc = tl.dot(tl.trans(w), load_keys(q, start, end, head, rows, static), acc, input_precision=precision)
    gate = tl.sum(to_end, 0) + tl.sum(logs, 0) - tl.cumsum(logs, 0) + logs
    return acc + of_rows + of_cols, gate, strength, tl.sum(carried, 0)


@triton.jit
def numbers_of_first(x, tile, start, end, head, static: tl.constexpr):
    """Numbers of a chunk and head in the program of the first tile of channels, zeros in others."""
    return load_numbers(x, start, tl.where(tile == 0, end, start), head, static.heads, static.chunk, 0.0)


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
