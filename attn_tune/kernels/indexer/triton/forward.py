"""The launch of the indexer: a tile of queries by keys, whose products with each head are added up in registers."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.indexer.triton.config import Config
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.ops.indexer.operands import Operands
from attn_tune.ops.indexer.problem import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Static:
    """Compile-time constants: Triton's cache is keyed by this value's text.

    Attributes:
      q_len, kv_len, heads, head_dim: queries and keys of a sequence, index heads and their width.
      block_q, block_k: as in the config.
      block_n, block_h: the powers of two that hold the heads of a query and their width.
      q_tiles, k_tiles: tiles of a sequence.
      scale: multiplies the scores.
      precision: of the products.
    """

    q_len: int
    kv_len: int
    heads: int
    head_dim: int
    block_q: int
    block_k: int
    block_n: int
    block_h: int
    q_tiles: int
    k_tiles: int
    scale: float
    precision: str


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, jax.Array]:
    """``scores`` [B, T, S] in float32."""
    batch, q_len, heads, head_dim = operands.q.shape
    kv_len = operands.k.shape[1]
    static = Static(
        q_len=q_len,
        kv_len=kv_len,
        heads=heads,
        head_dim=head_dim,
        block_q=config.block_q,
        block_k=config.block_k,
        block_n=padded(heads),
        block_h=padded(head_dim),
        q_tiles=-(-q_len // config.block_q),
        k_tiles=-(-kv_len // config.block_k),
        scale=problem.scale,
        precision="tf32x3" if problem.dtype == "float32" else "tf32",
    )
    (scores,) = triton_call(
        indexer_kernel,
        *operands,
        out_types=[jax.ShapeDtypeStruct((batch, q_len, kv_len), jnp.float32)],
        grid=(batch * static.q_tiles * static.k_tiles, 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        name="indexer",
    )
    return {"scores": scores}


@triton.jit
def indexer_kernel(q, k, weights, starts, ends, scores, static: tl.constexpr):
    """One program per tile; those of the same queries are neighbours."""
    k_tile = tl.program_id(0) % static.k_tiles
    q_tile = tl.program_id(0) // static.k_tiles % static.q_tiles
    sequence = (tl.program_id(0) // (static.k_tiles * static.q_tiles)).to(tl.int64)
    query = q_tile * static.block_q + tl.arange(0, static.block_q)
    is_query = query < static.q_len
    row = sequence * static.q_len + query
    start = tl.load(starts + row, mask=is_query, other=0)
    end = tl.load(ends + row, mask=is_query, other=0)
    first = k_tile * static.block_k
    key = first + tl.arange(0, static.block_k)
    is_key = key < static.kv_len
    cols = tl.arange(0, static.block_h)[None, :]
    keys = tl.load(
        k + (sequence * static.kv_len + key)[:, None] * static.head_dim + cols,
        mask=is_key[:, None] & (cols < static.head_dim),
        other=0.0,
    )
    acc = tl.full([static.block_q, static.block_k], 0.0, tl.float32)
    # A tile that no query's range meets is written, and not computed.
    meets = (start < tl.minimum(first + static.block_k, static.kv_len)) & (end > first) & (start < end)
    some = tl.max(meets.to(tl.int32), 0) > 0
    if static.block_q == 1:
        if some:
            head = tl.arange(0, static.block_n)
            is_head = head < static.heads
            line = (sequence * static.q_len + q_tile) * static.heads + head
            places = q + line[:, None] * static.head_dim + cols
            heads = tl.load(places, mask=is_head[:, None] & (cols < static.head_dim), other=0.0)
            counts = tl.load(weights + line, mask=is_head, other=0.0)
            x = tl.dot(heads, tl.trans(keys), input_precision=static.precision)
            acc += tl.sum(tl.maximum(x, 0.0) * counts[:, None], 0)[None, :]
    else:
        lines = row[:, None] * static.heads
        for head in tl.range(0, tl.where(some, static.heads, 0)):
            own = tl.load(
                q + (lines + head) * static.head_dim + cols,
                mask=is_query[:, None] & (cols < static.head_dim),
                other=0.0,
            )
            counts = tl.load(weights + row * static.heads + head, mask=is_query, other=0.0)
            x = tl.dot(own, tl.trans(keys), input_precision=static.precision)
            acc += tl.maximum(x, 0.0) * counts[:, None]
    seen = (key[None, :] >= start[:, None]) & (key[None, :] < end[:, None])
    values = tl.where(seen, acc * static.scale, float("-inf"))
    tl.store(scores + row[:, None] * static.kv_len + key[None, :], values, mask=is_query[:, None] & is_key[None, :])
