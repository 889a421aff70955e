"""The launch that differentiates the products of the pairs of each chunk, once the walks of the backward are done.

With the names of ``prepare.py`` and ``backward_scan.py`` it makes ``y = T^T du``, of which ``dv = beta y``, and the
gradients of the products of pairs::

    w[i, j] = scale dout[i] . u[j]        of q[i] . D[i, j] k[j], for j <= i
    z[i, j] = -y[i] . u[j]                of beta[i] k[i] . D[i, j] k[j], for j < i
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
from attn_tune.kernels.kda.triton.prepare import Prepared, product_wide, rounded_twice
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.static import (
    Static,
    chunk_of,
    load_lower,
    load_numbers,
    load_tokens,
    store_tokens,
)
from attn_tune.ops.recurrent.operands import BackwardInputs


def differentiate_pairs(
    inputs: BackwardInputs, prepared: Prepared, kept: Kept, walked: Walked, config: BackwardConfig, static: Static
) -> tuple[jax.Array, ...]:
    """``dv``; ``w``, its transpose and ``z`` ``[slots, N, 3, chunk, chunk]``; and ``y . v`` of each token.

    The third matrix is symmetric: ``z[i, j]`` stands above the diagonal too, in row ``j``.
    """
    o = inputs.operands
    return triton_call(
        pairs_kernel,
        o.v,
        o.beta,
        o.cu_seqlens,
        inputs.dout,
        kept.updates,
        walked.update_gradients,
        prepared.solved,
        out_types=[
            jax.ShapeDtypeStruct(o.v.shape, o.v.dtype),
            jax.ShapeDtypeStruct((static.slots, static.heads, 3, static.chunk, static.chunk), o.q.dtype),
            jax.ShapeDtypeStruct(o.v.shape[:3], jnp.float32),
        ],
        grid=(static.slots * static.heads, 1, 1),
        constexprs={"static": static},
        num_warps=config.gradient_warps,
        num_stages=config.gradient_stages,
        name="kda_bwd_pairs",
    )


@triton.jit
def pairs_kernel(
    v,
    beta,
    cu_seqlens,
    dout,
    updates,
    update_gradients,
    solved,
    dv,
    matrices,
    strengths,
    static: tl.constexpr,
):
    """One program per chunk and value head; tokens of no sequence get zeros."""
    head = tl.program_id(0) % static.heads
    slot = tl.program_id(0) // static.heads
    sequence, start, end = chunk_of(cu_seqlens, slot, static)
    chunk: tl.constexpr = static.chunk
    precision: tl.constexpr = static.precision
    heads: tl.constexpr = static.heads
    width: tl.constexpr = static.v_width
    if (sequence >= 0) & (start < end):
        weight = load_weights(beta, start, end, head, static)
        # Transposes by products of their own: on Hopper some versions of Triton turn registers wrongly.
        w = tl.full([chunk, chunk], 0, tl.float32)
        wt = tl.full([chunk, chunk], 0, tl.float32)
        z = tl.full([chunk, chunk], 0, tl.float32)
        zt = tl.full([chunk, chunk], 0, tl.float32)
        strength = tl.full([chunk], 0, tl.float32)
        high, low = rounded_twice(load_lower(solved, tl.program_id(0), chunk), updates.dtype.element_ty)
        for first in tl.range(0, static.tiles * static.block_v, static.block_v):
            cols = first + tl.arange(0, static.block_v)
            dout_tile = load_tokens(dout, start, end, head, heads, width, cols, chunk, static.whole)
            u_tile = load_tokens(updates, start, end, head, heads, width, cols, chunk, static.whole)
            du_tile = load_tokens(update_gradients, start, end, head, heads, width, cols, chunk, static.whole)
            v_tile = load_tokens(v, start, end, head, heads, width, cols, chunk, static.whole)
            y = product_wide(tl.trans(high), tl.trans(low), du_tile, static)
            store_tokens(dv, y * weight[:, None], start, end, head, heads, width, cols, chunk)
            strength += tl.sum(y * v_tile.to(tl.float32), 1)
            y_tile = y.to(u_tile.dtype)
            w = tl.dot(dout_tile, tl.trans(u_tile), w, input_precision=precision)
            wt = tl.dot(u_tile, tl.trans(dout_tile), wt, input_precision=precision)
            z = tl.dot(y_tile, tl.trans(u_tile), z, input_precision=precision)
            zt = tl.dot(u_tile, tl.trans(y_tile), zt, input_precision=precision)
        row = tl.arange(0, chunk)[:, None]
        col = tl.arange(0, chunk)[None, :]
        base = matrices + tl.program_id(0).to(tl.int64) * (3 * chunk * chunk) + row * chunk + col
        dtype: tl.constexpr = matrices.dtype.element_ty
        tl.store(base, (w * static.scale).to(dtype))
        tl.store(base + chunk * chunk, (wt * static.scale).to(dtype))
        tl.store(base + 2 * chunk * chunk, tl.where(row > col, -z, -zt).to(dtype))
        store_numbers(strengths, strength, start, end, head, static)
    elif start < end:
        nothing = tl.full([chunk, static.block_v], 0, tl.float32)
        for first in tl.range(0, static.tiles * static.block_v, static.block_v):
            cols = first + tl.arange(0, static.block_v)
            store_tokens(dv, nothing, start, end, head, heads, width, cols, chunk)
        store_numbers(strengths, tl.full([chunk], 0, tl.float32), start, end, head, static)


@triton.jit
def load_weights(beta, start, end, head, static: tl.constexpr):
    """The strengths of a chunk's tokens."""
    if beta is None:
        return tl.full([static.chunk], 1.0, tl.float32)
    else:
        return load_numbers(beta, start, end, head, static.heads, static.chunk, 0.0)


@triton.jit
def store_numbers(x, values, start, end, head, static: tl.constexpr):
    """Stores a chunk's numbers of one head, those of tokens before ``end``."""
    token = start + tl.arange(0, static.chunk)
    tl.store(x + token.to(tl.int64) * static.heads + head, values, mask=token < end)
