"""The launch that prepares chunks, each by itself: all that needs no state.

In a chunk that starts with the state ``S``, with ``G[i]`` the sums of the gates of each channel up to token ``i`` and
``D[i, j] = exp(G[i] - G[j])``, the updates ``u`` solve (Kimi Linear, arXiv 2510.26692, section 3.2)::

    u[i] + beta[i] sum over j < i of (k[i] . D[i, j] k[j]) u[j] = beta[i] (v[i] - S^T exp(G[i]) k[i])

With ``T`` the inverse of that system, ``u`` is ``T (beta v) - W S`` with ``W = T (beta exp(G) k)``. Both are made here,
so that a walk has two products one after the other and not three. For the backward ``P^T dout`` is made here too, with
``P`` the decayed products of queries and keys, while ``P`` is in float32.

Decays between any two tokens of a chunk: ``lang/triton/chunks/levels.py``.
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
    decayed,
    load_logs,
    lowest_level,
    pairs_at,
    pairs_near,
    summed,
    sums_near,
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
from attn_tune.ops.recurrent.operands import Operands


class Prepared(NamedTuple):
    """All that is known of each chunk and head without the state.

    Attributes:
      queries: those of each value head, decayed from the start of the chunk, times the scale ``[R, T, N, H]``, in the
        working dtype.
      keys: those of each value head, decayed to the end of the chunk, likewise.
      known: ``W``, likewise: by what a token's update depends on the state.
      values: ``T (beta v)`` ``[R, T, N, V]``, in float32.
      factors: the float32 decays of a whole chunk ``[slots, N, H]``.
      pairs: decayed products of queries and keys ``[slots, N, chunk, chunk]``, times the scale, in the working dtype.
        Blocks of 16 above those of the diagonal are not written. Not of the backward.
      solved: ``T``, as ``pairs``, in float32. Of the backward alone.
      own_gradients: ``P^T dout`` ``[R, T, N, V]``, times the scale, in float32. Of the backward alone.
    """

    queries: jax.Array
    keys: jax.Array
    known: jax.Array
    values: jax.Array
    factors: jax.Array
    pairs: jax.Array
    solved: jax.Array
    own_gradients: jax.Array


def prepare(problem: Recurrent, config: ChannelChunks, operands: Operands, dout: jax.Array | None = None) -> Prepared:
    """Prepares every chunk of every value head.

    Args:
      dout: the cotangent of the output, of the backward.
    """
    # Without columns of the state, so that walks of all kinds share one program.
    o, static = operands, kda_static(problem, config, block_v=16)
    dtype, places = o.q.dtype, (static.slots, static.heads)
    tokens = jax.ShapeDtypeStruct((*o.v.shape[:3], static.width), dtype)
    matrices = (*places, static.chunk, static.chunk)
    of_backward = dout is not None
    found = triton_call(
        prepare_kernel,
        o.q,
        o.k,
        o.v,
        o.g,
        o.beta,
        dout,
        o.cu_seqlens,
        out_types=[
            tokens,
            tokens,
            tokens,
            jax.ShapeDtypeStruct(o.v.shape, jnp.float32),
            jax.ShapeDtypeStruct((*places, static.width), jnp.float32),
            jax.ShapeDtypeStruct((1,) if of_backward else matrices, dtype),
            jax.ShapeDtypeStruct(matrices if of_backward else (1,), jnp.float32),
            jax.ShapeDtypeStruct(o.v.shape if of_backward else (1,), jnp.float32),
        ],
        grid=(static.slots * static.heads, 1, 1),
        constexprs={
            "static": static,
            "CHANNELS": min(config.prepare_channels, static.block_h),
            "COLUMNS": min(config.prepare_channels, padded(static.v_width)),
        },
        num_warps=config.prepare_warps,
        num_stages=1,
        maxnreg=config.prepare_registers,
        name="kda_prepare",
    )
    return Prepared(*found)


def kda_static(problem: Recurrent, config: ChannelChunks, block_v: int, segments: int = 1) -> Static:
    """The constants of launches; products of float32 are exact, as those are of which the inverse is made."""
    return dataclasses.replace(static_of(problem, config, block_v, segments), precision="tf32x3")


@triton.jit
def prepare_kernel(
    q,
    k,
    v,
    g,
    beta,
    dout,
    cu_seqlens,
    queries,
    keys,
    known,
    values,
    factors,
    pairs,
    solved,
    own_gradients,
    static: tl.constexpr,
    CHANNELS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program per chunk and value head; heads that share a key head are neighbours."""
    head = tl.program_id(0) % static.heads
    slot = tl.program_id(0) // static.heads
    sequence, start, end = chunk_of(cu_seqlens, slot, static)
    if (sequence >= 0) & (start < end):
        chunk: tl.constexpr = static.chunk
        dtype: tl.constexpr = q.dtype.element_ty
        row = tl.arange(0, chunk)[:, None]
        col = tl.arange(0, chunk)[None, :]
        a, p = products(q, k, g, queries, keys, factors, start, end, head, static, CHANNELS)
        weight = tl.full([chunk], 1.0, tl.float32)
        if beta is not None:
            weight = load_numbers(beta, start, end, head, static.heads, chunk, 0.0)
            a *= weight[:, None]
        offsets = tl.program_id(0).to(tl.int64) * (chunk * chunk) + row * chunk + col
        is_lower = row // 16 >= col // 16
        if dout is None:
            tl.store(pairs + offsets, p.to(dtype), mask=is_lower)
        x = inverse(a, static, "tf32x3")
        if dout is not None:
            tl.store(solved + offsets, x, mask=is_lower)
        # Rounded once, the inverse would make half of the whole forward's error.
        high, low = rounded_twice(x * weight[None, :], dtype)

        key_head = head // static.group
        for first in tl.range(0, static.block_h, CHANNELS, num_stages=1, disable_licm=True):
            cols = first + tl.arange(0, CHANNELS)
            k_tile = load_tokens(k, start, end, key_head, static.key_heads, static.width, cols, chunk, static.whole)
            logs, _total = load_logs(g, start, end, head, cols, static)
            k_tile = decayed(k_tile, summed(tokens_before(static), logs, static))
            found = product(high, low, k_tile, static)
            store_tokens(known, found, start, end, head, static.heads, static.width, cols, chunk)
        for first in tl.range(0, static.v_width, COLUMNS, num_stages=1, disable_licm=True):
            cols = first + tl.arange(0, COLUMNS)
            v_tile = load_tokens(v, start, end, head, static.heads, static.v_width, cols, chunk, static.whole)
            found = product(high, low, v_tile, static)
            store_tokens(values, found, start, end, head, static.heads, static.v_width, cols, chunk)
        if dout is not None:
            # The walk backwards starts from it: rounded, the gradients of values would not be right.
            high, low = rounded_twice(p, dtype)
            for first in tl.range(0, static.v_width, COLUMNS, num_stages=1, disable_licm=True):
                cols = first + tl.arange(0, COLUMNS)
                tile = load_tokens(dout, start, end, head, static.heads, static.v_width, cols, chunk, static.whole)
                found = product(tl.trans(high), tl.trans(low), tile, static)
                store_tokens(own_gradients, found, start, end, head, static.heads, static.v_width, cols, chunk)


@triton.jit
def products(q, k, g, queries, keys, factors, start, end, head, static: tl.constexpr, CHANNELS: tl.constexpr):
    """Decayed products of keys and earlier keys, and of queries and keys not later; what is decayed is stored.

    Products of queries are times the scale.
    """
    chunk: tl.constexpr = static.chunk
    levels: tl.constexpr = chunk.bit_length() - 1
    precision: tl.constexpr = static.precision
    key_head = head // static.group
    index = tl.program_id(0).to(tl.int64)
    a = tl.full([chunk, chunk], 0, tl.float32)
    p = tl.full([chunk, chunk], 0, tl.float32)
    own = tl.full([chunk], 0, tl.float32)
    for first in tl.range(0, static.block_h, CHANNELS, num_stages=1, disable_licm=True):
        cols = first + tl.arange(0, CHANNELS)
        k_tile = load_tokens(k, start, end, key_head, static.key_heads, static.width, cols, chunk, static.whole)
        q_tile = load_tokens(q, start, end, key_head, static.key_heads, static.width, cols, chunk, static.whole)
        logs, total = load_logs(g, start, end, head, cols, static)
        own += tl.sum(q_tile.to(tl.float32) * k_tile.to(tl.float32), 1)
        before = summed(tokens_before(static), logs, static)
        lowest = lowest_level(logs, k_tile.dtype, static)
        if lowest > 0:
            near = sums_near(before, lowest, logs, static)
            later = decayed(k_tile, near)
            later_queries = decayed(q_tile, near)
            earlier = tl.trans(decayed(k_tile, -near))
            chosen = pairs_near(lowest, static)
            a += tl.where(chosen, tl.dot(later, earlier), 0.0)
            p += tl.where(chosen, tl.dot(later_queries, earlier), 0.0)
        for level in tl.range(lowest, levels, num_stages=1, disable_licm=True):
            factor = summed(tokens_within(level, static), logs, static)
            of_keys = decayed(k_tile, factor)
            of_queries = decayed(q_tile, factor)
            chosen = pairs_at(level, static)
            a += tl.where(chosen, tl.dot(of_keys, tl.trans(of_keys), input_precision=precision), 0.0)
            p += tl.where(chosen, tl.dot(of_queries, tl.trans(of_keys), input_precision=precision), 0.0)
        q_tile = q_tile * tl.exp2(before) * static.scale
        store_tokens(queries, q_tile, start, end, head, static.heads, static.width, cols, chunk)
        k_tile = decayed(k_tile, summed(tokens_within(levels, static), logs, static))
        store_tokens(keys, k_tile, start, end, head, static.heads, static.width, cols, chunk)
        tl.store(factors + index * static.width + cols, tl.exp2(total), mask=cols < static.width)
    row = tl.arange(0, chunk)[:, None]
    col = tl.arange(0, chunk)[None, :]
    return a, (p + tl.where(row == col, own[:, None], 0.0)) * static.scale


@triton.jit
def rounded_twice(x, dtype: tl.constexpr):
    """Two matrices in a working dtype whose sum is a float32 matrix; of float32 the second one is zero."""
    high = x.to(dtype)
    return high, (x - high.to(tl.float32)).to(dtype)


@triton.jit
def product(high, low, tile, static: tl.constexpr):
    """The product with a matrix of ``rounded_twice``."""
    found = tl.dot(high, tile, input_precision=static.precision)
    if static.is_wide:
        return found
    else:
        return tl.dot(low, tile, found)


@triton.jit
def product_wide(high, low, x, static: tl.constexpr):
    """The product of a matrix of ``rounded_twice`` and a float32 matrix."""
    first, second = rounded_twice(x, high.dtype)
    found = product(high, low, first, static)
    if static.is_wide:
        return found
    else:
        return tl.dot(high, second, found)
