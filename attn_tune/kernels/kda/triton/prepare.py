"""The launch that prepares chunks, each by itself: all that needs no state.

In a chunk that starts with the state ``S``, with ``G[i]`` the sums of the gates of each channel up to token ``i`` and
``D[i, j] = exp(G[i] - G[j])``, the updates ``u`` solve (Kimi Linear, arXiv 2510.26692, section 3.2)::

    u[i] + beta[i] sum over j < i of (k[i] . D[i, j] k[j]) u[j] = beta[i] (v[i] - S^T exp(G[i]) k[i])

With ``T`` the inverse of that system, ``u`` is ``T (beta v) - W S`` with ``W = T (beta exp(G) k)``. Both are made here,
so that a walk has two products one after the other and not three. Decays: ``lang/triton/chunks/levels.py``.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.kda.triton.config import ChannelChunks
from attn_tune.kernels.lang.recurrent import Recurrent
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.inverse import inverse
from attn_tune.kernels.lang.triton.chunks.levels import (
    load_logs,
    pairs_at,
    summed,
    tokens_before,
    tokens_within,
)
from attn_tune.kernels.lang.triton.chunks.static import (
    Static,
    chunk_of,
    load_numbers,
    load_tokens,
    static_of,
    store_tokens,
)
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.ops.gated_delta_rule.operands import Operands


class Prepared(NamedTuple):
    """All that is known of each chunk and head without the state.

    Attributes:
      queries: those of each value head, decayed from the start of the chunk ``[R, T, N, H]``, in the working dtype.
      keys: those of each value head, decayed to the end of the chunk, likewise.
      known: ``W``, likewise: by what a token's update depends on the state.
      values: ``T (beta v)`` ``[R, T, N, V]``, likewise.
      pairs: decayed products of queries and keys ``[slots, N, chunk, chunk]``, likewise. Blocks of 16 above those of
        the diagonal are not written.
      factors: the float32 decays of a whole chunk ``[slots, N, H]``.
      solved: ``T``, as ``pairs``; None unless it was asked for.
    """

    queries: jax.Array
    keys: jax.Array
    known: jax.Array
    values: jax.Array
    pairs: jax.Array
    factors: jax.Array
    solved: jax.Array | None


def prepare(problem: Recurrent, config: ChannelChunks, operands: Operands, *, keeps_solved: bool = False) -> Prepared:
    """Prepares every chunk of every value head.

    Args:
      keeps_solved: the inverse is an output too, which a backward needs.
    """
    # Without columns of the state, so that walks of all kinds share one program.
    o, static = operands, kda_static(problem, config, block_v=16)
    dtype, places = o.q.dtype, (static.slots, static.heads)
    tokens = jax.ShapeDtypeStruct((*o.v.shape[:3], static.width), dtype)
    matrices = jax.ShapeDtypeStruct((*places, static.chunk, static.chunk), dtype)
    found = triton_call(
        prepare_kernel,
        o.q,
        o.k,
        o.v,
        o.g,
        o.beta,
        o.cu_seqlens,
        out_types=[
            tokens,
            tokens,
            tokens,
            jax.ShapeDtypeStruct(o.v.shape, dtype),
            matrices,
            jax.ShapeDtypeStruct((*places, static.width), jnp.float32),
            matrices if keeps_solved else jax.ShapeDtypeStruct((1,), dtype),
        ],
        grid=(static.slots * static.heads, 1, 1),
        constexprs={
            "static": static,
            "CHANNELS": min(config.prepare_channels, static.block_h),
            "COLUMNS": min(config.prepare_channels, padded(static.v_width)),
            "KEEPS_SOLVED": keeps_solved,
        },
        num_warps=config.prepare_warps,
        num_stages=1,
        maxnreg=config.prepare_registers,
        name="kda_prepare",
    )
    prepared = Prepared(*found)
    return prepared if keeps_solved else prepared._replace(solved=None)


def kda_static(problem: Recurrent, config: ChannelChunks, block_v: int, segments: int = 1) -> Static:
    """The constants of launches with this many columns of the state a program."""
    # One pass of tf32 cuts operands off, also those of the inverse, of which everything is made.
    return dataclasses.replace(static_of(problem, config, block_v, segments), precision="tf32x3")


@triton.jit
def prepare_kernel(
    q,
    k,
    v,
    g,
    beta,
    cu_seqlens,
    queries,
    keys,
    known,
    values,
    pairs,
    factors,
    solved,
    static: tl.constexpr,
    CHANNELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    KEEPS_SOLVED: tl.constexpr,
):
    """One program per chunk and value head; heads that share a key head are neighbours."""
    head = tl.program_id(0) % static.heads
    slot = tl.program_id(0) // static.heads
    sequence, start, end = chunk_of(cu_seqlens, slot, static)
    if (sequence >= 0) & (start < end):
        chunk: tl.constexpr = static.chunk
        row = tl.arange(0, chunk)[:, None]
        col = tl.arange(0, chunk)[None, :]
        a, p = products(q, k, g, queries, keys, factors, start, end, head, static, CHANNELS)
        weight = tl.full([chunk], 1.0, tl.float32)
        if beta is not None:
            weight = load_numbers(beta, start, end, head, static.heads, chunk, 0.0)
            a *= weight[:, None]
        offsets = tl.program_id(0).to(tl.int64) * (chunk * chunk) + row * chunk + col
        is_lower = row // 16 >= col // 16
        tl.store(pairs + offsets, p.to(pairs.dtype.element_ty), mask=is_lower)
        x = inverse(a, static)
        if KEEPS_SOLVED:
            tl.store(solved + offsets, x.to(solved.dtype.element_ty), mask=is_lower)
        x *= weight[None, :]
        high = x.to(pairs.dtype.element_ty)
        # Rounded once, it would make half of the whole forward's error.
        low = (x - high.to(tl.float32)).to(pairs.dtype.element_ty)

        key_head = head // static.group
        for first in tl.range(0, static.block_h, CHANNELS, num_stages=1):
            cols = first + tl.arange(0, CHANNELS)
            k_tile = load_tokens(k, start, end, key_head, static.key_heads, static.width, cols, chunk, static.whole)
            logs, _total = load_logs(g, start, end, head, cols, static)
            k_tile = decayed(k_tile, summed(tokens_before(static), logs, static))
            found = product(high, low, k_tile, static)
            store_tokens(known, found, start, end, head, static.heads, static.width, cols, chunk)
        for first in tl.range(0, static.v_width, COLUMNS, num_stages=1):
            cols = first + tl.arange(0, COLUMNS)
            v_tile = load_tokens(v, start, end, head, static.heads, static.v_width, cols, chunk, static.whole)
            found = product(high, low, v_tile, static)
            store_tokens(values, found, start, end, head, static.heads, static.v_width, cols, chunk)


@triton.jit
def products(q, k, g, queries, keys, factors, start, end, head, static: tl.constexpr, CHANNELS: tl.constexpr):
    """Decayed products of keys and earlier keys, and of queries and keys not later; what is decayed is stored."""
    chunk: tl.constexpr = static.chunk
    levels: tl.constexpr = chunk.bit_length() - 1
    precision: tl.constexpr = static.precision
    key_head = head // static.group
    index = tl.program_id(0).to(tl.int64)
    a = tl.full([chunk, chunk], 0, tl.float32)
    p = tl.full([chunk, chunk], 0, tl.float32)
    own = tl.full([chunk], 0, tl.float32)
    for first in tl.range(0, static.block_h, CHANNELS, num_stages=1):
        cols = first + tl.arange(0, CHANNELS)
        k_tile = load_tokens(k, start, end, key_head, static.key_heads, static.width, cols, chunk, static.whole)
        q_tile = load_tokens(q, start, end, key_head, static.key_heads, static.width, cols, chunk, static.whole)
        logs, total = load_logs(g, start, end, head, cols, static)
        own += tl.sum(q_tile.to(tl.float32) * k_tile.to(tl.float32), 1)
        for level in tl.range(0, levels, num_stages=1):
            factor = tl.exp2(summed(tokens_within(level, static), logs, static))
            of_keys = (k_tile * factor).to(k_tile.dtype)
            of_queries = (q_tile * factor).to(k_tile.dtype)
            chosen = pairs_at(level, static)
            a += tl.where(chosen, tl.dot(of_keys, tl.trans(of_keys), input_precision=precision), 0.0)
            p += tl.where(chosen, tl.dot(of_queries, tl.trans(of_keys), input_precision=precision), 0.0)
        q_tile = decayed(q_tile, summed(tokens_before(static), logs, static))
        store_tokens(queries, q_tile, start, end, head, static.heads, static.width, cols, chunk)
        k_tile = decayed(k_tile, summed(tokens_within(levels, static), logs, static))
        store_tokens(keys, k_tile, start, end, head, static.heads, static.width, cols, chunk)
        tl.store(factors + index * static.width + cols, tl.exp2(total), mask=cols < static.width)
    row = tl.arange(0, chunk)[:, None]
    col = tl.arange(0, chunk)[None, :]
    return a, p + tl.where(row == col, own[:, None], 0.0)


@triton.jit
def decayed(x, logs):
    """Rows of a chunk times their decays, in their dtype."""
    return (x * tl.exp2(logs)).to(x.dtype)


@triton.jit
def product(high, low, tile, static: tl.constexpr):
    """The product with a matrix that is the sum of two; of float32 the second one is zero."""
    found = tl.dot(high, tile, input_precision=static.precision)
    if static.is_wide:
        return found
    else:
        return tl.dot(low, tile, found)
