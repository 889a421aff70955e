"""The launch that differentiates the pairs of tokens of each chunk, whatever the states are.

It leaves the matrices ``w`` and ``beta z`` of ``gradients.py`` to the launches there, what all pairs add to the
gradients of ``G``, and the part of ``dbeta`` that needs no state: ``y[i] . v[i]`` and the sum over ``j`` of
``z[i, j] (k[i] . k[j])``. One program a value head reads each of its operands once.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from typing import NamedTuple

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.gated_delta_rule._triton.prepare import log_gates
from attn_tune.kernels.gated_delta_rule._triton.walked import Kept, Walked
from attn_tune.kernels.gated_delta_rule.triton.config import BackwardConfig
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.decays import decays_between
from attn_tune.kernels.lang.triton.chunks.static import Static, chunk_of, load_numbers, load_tokens
from attn_tune.ops.gated_delta_rule.operands import BackwardInputs


class Pairs(NamedTuple):
    """Arrays that the launch leaves.

    Attributes:
      weights: ``w`` of each chunk ``[slots, N, chunk, chunk]``, in the working dtype. Blocks of 16 above those of the
        diagonal are not written.
      strengths: ``beta z``, likewise.
      shares: float32 ``[R, T, N]``: what pairs add to the gradients of ``G``.
      dbeta: float32 ``[R, T, N]``: the part of the gradient of ``beta``.
    """

    weights: jax.Array
    strengths: jax.Array
    shares: jax.Array
    dbeta: jax.Array


def pair(inputs: BackwardInputs, kept: Kept, walked: Walked, config: BackwardConfig, static: Static) -> Pairs:
    """Differentiates the pairs of tokens of every chunk and value head."""
    o = inputs.operands
    matrices = jax.ShapeDtypeStruct((static.slots, static.heads, static.chunk, static.chunk), o.q.dtype)
    numbers = jax.ShapeDtypeStruct(o.v.shape[:3], jnp.float32)
    found = triton_call(
        pairs_kernel,
        o.q,
        o.k,
        o.v,
        o.g,
        o.beta,
        o.cu_seqlens,
        inputs.dout,
        kept.updates,
        kept.rests,
        walked.update_gradients,
        out_types=[matrices, matrices, numbers, numbers],
        grid=(static.slots * static.heads, 1, 1),
        constexprs={"static": static},
        num_warps=config.pair_warps,
        num_stages=config.gradient_stages,
        maxnreg=config.gradient_registers,
        name="gated_delta_rule_bwd_pairs",
    )
    return Pairs(*found)


@triton.jit
def pairs_kernel(
    q,
    k,
    v,
    g,
    beta,
    cu_seqlens,
    dout,
    updates,
    rests,
    update_gradients,
    weights,
    strengths,
    shares,
    dbeta,
    static: tl.constexpr,
):
    """One program per chunk and value head; heads that share a key head are neighbours."""
    head = tl.program_id(0) % static.heads
    slot = tl.program_id(0) // static.heads
    sequence, start, end = chunk_of(cu_seqlens, slot, static)
    chunk: tl.constexpr = static.chunk
    precision: tl.constexpr = static.precision
    if (sequence >= 0) & (start < end):
        w = tl.full([chunk, chunk], 0, tl.float32)
        z = tl.full([chunk, chunk], 0, tl.float32)
        w_rests = tl.full([chunk, chunk], 0, tl.float32)
        z_rests = tl.full([chunk, chunk], 0, tl.float32)
        strength = tl.full([chunk], 0, tl.float32)
        for first in tl.range(0, static.tiles * static.block_v, static.block_v):
            cols = first + tl.arange(0, static.block_v)
            dout_tile = load_values(dout, start, end, head, cols, static)
            y_tile = load_values(update_gradients, start, end, head, cols, static)
            u_tile = load_values(updates, start, end, head, cols, static)
            w = tl.dot(dout_tile, tl.trans(u_tile), w, input_precision=precision)
            z = tl.dot(y_tile, tl.trans(u_tile), z, input_precision=precision)
            if not static.is_wide:
                rest = load_values(rests, start, end, head, cols, static)
                w_rests = tl.dot(dout_tile, tl.trans(rest), w_rests)
                z_rests = tl.dot(y_tile, tl.trans(rest), z_rests)
            v_tile = load_values(v, start, end, head, cols, static)
            strength += tl.sum(y_tile.to(tl.float32) * v_tile.to(tl.float32), 1)
        row = tl.arange(0, chunk)[:, None]
        col = tl.arange(0, chunk)[None, :]
        rows = tl.arange(0, static.block_h)
        k_tile = load_keys(k, start, end, head, rows, static)
        gates, resets = log_gates(g, start, end, head, static)
        decay = decays_between(gates, resets, False, static)
        w = (w + w_rests) * decay * static.scale
        z = tl.where(row > col, -(z + z_rests) * decay, 0.0)
        q_tile = load_keys(q, start, end, head, rows, static)
        products = w * tl.dot(q_tile, tl.trans(k_tile), input_precision=precision)
        share = tl.sum(products, 1) - tl.sum(products, 0)
        index = slot * static.heads + head
        store_lower(weights, index, w.to(weights.dtype.element_ty), static)
        products = z * tl.dot(k_tile, tl.trans(k_tile), input_precision=precision)
        strength += tl.sum(products, 1)
        if beta is not None:
            weight = load_numbers(beta, start, end, head, static.heads, chunk, 0.0)[:, None]
            products *= weight
            z *= weight
        share += tl.sum(products, 1) - tl.sum(products, 0)
        store_lower(strengths, index, z.to(strengths.dtype.element_ty), static)
        store_numbers(shares, share, start, end, head, static)
        store_numbers(dbeta, strength, start, end, head, static)


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
