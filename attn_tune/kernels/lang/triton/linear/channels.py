"""The launch that prepares the chunks of a call with a gate a channel, each by itself.

With ``G[i]`` the sum of the gates up to token ``i``, channel by channel, the products of a chunk are::

    P[i, j] = sum over channels of q[i] k[j] exp(G[i] - G[j])       for j <= i

Of a block with weak gates they are one product (``chunks/levels.py``). Any other pair of tokens is met at one level of
halving. There a first half gives keys and a second one queries, decayed from the border between them: one array for
both, and one product of it with itself.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
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
from attn_tune.kernels.lang.triton.chunks.static import chunk_of, load_tokens, store_tokens
from attn_tune.kernels.lang.triton.linear.scan import Tokens
from attn_tune.kernels.lang.triton.linear.static import Static


def prepare(operands: Any, warps: int, columns: int, static: Static) -> Tokens:
    """The tokens of a call with a gate a channel, as walks read them.

    Args:
      columns: channels of the keys at a time.
    """
    o = operands
    # Without columns of the state, so that walks of all kinds share one program.
    static = dataclasses.replace(static, block_v=16, tiles=1, segments=1)
    places = (static.slots, static.heads)
    tokens = jax.ShapeDtypeStruct((*o.v.shape[:3], static.width), o.q.dtype)
    q, k, mixed, factors = triton_call(
        prepare_kernel,
        o.q,
        o.k,
        o.g,
        o.cu_seqlens,
        out_types=[
            tokens,
            tokens,
            jax.ShapeDtypeStruct((*places, static.chunk, static.chunk), o.q.dtype),
            jax.ShapeDtypeStruct((*places, static.width), jnp.float32),
        ],
        grid=(static.slots * static.heads, 1, 1),
        constexprs={"columns": min(columns, static.block_h), "static": static},
        num_warps=warps,
        num_stages=1,
        name="linear_attention_prepare",
    )
    return Tokens(q=q, k=k, v=o.v, g=None, decays=None, mixed=mixed, factors=factors, cu_seqlens=o.cu_seqlens)


@triton.jit
def prepare_kernel(
    q, k, g, cu_seqlens, decayed_q, decayed_k, mixed, factors, columns: tl.constexpr, static: tl.constexpr
):
    """One program per chunk and value head; heads that share a key head are neighbours."""
    head = tl.program_id(0) % static.heads
    slot = tl.program_id(0) // static.heads
    sequence, start, end = chunk_of(cu_seqlens, slot, static)
    chunk: tl.constexpr = static.chunk
    row = tl.arange(0, chunk)[:, None]
    col = tl.arange(0, chunk)[None, :]
    place = tl.program_id(0).to(tl.int64)
    if (sequence >= 0) & (start < end):
        products = tl.full([chunk, chunk], 0, tl.float32)
        for first in tl.range(0, static.block_h, columns, disable_licm=True):
            rows = first + tl.arange(0, columns)
            q_tile, k_tile = load_channels(q, k, start, end, head, rows, static)
            logs, total = load_logs(g, start, end, head, rows, static)
            own = tl.sum(q_tile.to(tl.float32) * k_tile.to(tl.float32), 1)
            products += tl.where(row == col, own[:, None], 0.0)
            before = summed(tokens_before(static), logs, static)
            q_decayed = q_tile.to(tl.float32) * tl.exp2(before)
            store_tokens(decayed_q, q_decayed, start, end, head, static.heads, static.width, rows, chunk)
            lowest = lowest_level(logs, k_tile.dtype, static)
            if lowest > 0:
                near = sums_near(before, lowest, logs, static)
                pairs = tl.dot(decayed(q_tile, near), tl.trans(decayed(k_tile, -near)))
                products += tl.where(pairs_near(lowest, static), pairs, 0.0)
            # No constants: the compiler would keep the matrices of all levels in registers.
            for level in tl.range(lowest, static.levels, num_stages=1, disable_licm=True):
                halves, _ = decayed_halves(q_tile, k_tile, logs, level, static)
                pairs = tl.dot(halves, tl.trans(halves), input_precision=static.precision)
                products += tl.where(pairs_at(level, static), pairs, 0.0)
            k_decayed = k_tile.to(tl.float32) * tl.exp2(summed(tokens_within(static.levels, static), logs, static))
            store_tokens(decayed_k, k_decayed, start, end, head, static.heads, static.width, rows, chunk)
            tl.store(factors + place * static.width + rows, tl.exp2(total), mask=rows < static.width)
        offsets = place * (chunk * chunk) + row * chunk + col
        tl.store(mixed + offsets, products.to(mixed.dtype.element_ty), mask=row // 16 >= col // 16)


@triton.jit
def load_channels(q, k, start, end, head, rows, static: tl.constexpr):
    """Some channels of the queries and keys of a chunk."""
    key_head = head // static.group
    q_tile = load_tokens(q, start, end, key_head, static.key_heads, static.width, rows, static.chunk, static.whole)
    k_tile = load_tokens(k, start, end, key_head, static.key_heads, static.width, rows, static.chunk, static.whole)
    return q_tile, k_tile


@triton.jit
def decayed_halves(q_tile, k_tile, logs, level, static: tl.constexpr):
    """Keys of each first half of ``2 << level`` tokens and queries of each second one, decayed from the border between.

    Returns:
      These in the working dtype, and their decays.
    """
    is_second = ((tl.arange(0, static.chunk) >> level) % 2 == 1)[:, None]
    decay = tl.exp2(summed(tokens_within(level, static), logs, static))
    return (tl.where(is_second, q_tile, k_tile).to(tl.float32) * decay).to(q_tile.dtype), decay
