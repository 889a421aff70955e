"""The forward: the query heads of a group at one token walk the blocks that they name.

The softmax is that of FlashAttention-2 (arXiv 2307.08691, algorithm 1) in base 2; the tile is that of arXiv 2502.11089,
section 3.4.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.tile import LN2
from attn_tune.kernels.native_sparse_attention.triton.config import ForwardConfig
from attn_tune.kernels.native_sparse_attention.triton.static import gather, named_tokens, own_query, static_of
from attn_tune.ops.native_sparse_attention.blocks import blocks_of
from attn_tune.ops.native_sparse_attention.operands import Operands
from attn_tune.ops.native_sparse_attention.problem import Problem


def forward(problem: Problem, config: ForwardConfig, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [B, T, N, V] in q's dtype and ``lse`` [B, T, N] in float32."""
    o = operands
    rows = o.q.shape[:3]
    firsts = blocks_of(problem, o.cu_seqlens).firsts if problem.is_packed else None
    out, lse = triton_call(
        forward_kernel,
        *(o.q, o.k, o.v, o.indices, firsts),
        out_types=[
            jax.ShapeDtypeStruct((*rows, problem.v_head_dim), o.q.dtype),
            jax.ShapeDtypeStruct(rows, jnp.float32),
        ],
        grid=(rows[0] * rows[1] * problem.num_kv_heads, 1, 1),
        constexprs={"static": static_of(problem, config)},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        name="native_sparse_attention_fwd",
    )
    return {"out": out, "lse": lse}


@triton.jit
def forward_kernel(q, k, v, indices, firsts, out, lse, static: tl.constexpr):
    """One program per query and key head."""
    row, kv_head, query, first, position = own_query(firsts, static)
    token_row = row * static.q_len + query
    head = tl.arange(0, static.block_n)
    is_head = head < static.group
    own = token_row * static.heads + kv_head * static.group + head
    h_cols = tl.arange(0, static.block_h)[None, :]
    v_cols = tl.arange(0, static.block_v)[None, :]
    q_mask = is_head[:, None] & (h_cols < static.head_dim)
    q_tile = tl.load(q + own[:, None] * static.head_dim + h_cols, mask=q_mask, other=0.0)

    indices += (token_row * static.kv_heads + kv_head) * static.selected
    keys = (row * static.kv_len + first) * static.kv_heads + kv_head
    k += keys * static.head_dim
    v += keys * static.v_head_dim
    maximum = tl.full([static.block_n], float("-inf"), tl.float32)
    total = tl.full([static.block_n], 0.0, tl.float32)
    acc = tl.full([static.block_n, static.block_v], 0.0, tl.float32)
    for start in tl.range(0, static.selected * static.block_size, static.block_k):
        token, valid = named_tokens(indices, start, position, static)
        k_tile = gather(k, token, valid, static.kv_heads * static.head_dim, static.head_dim, static.block_h, static)
        x = tl.dot(q_tile, tl.trans(k_tile), input_precision=static.precision) * static.scale2
        x = tl.where(valid[None, :], x, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(x, 1))
        shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(x - shift[:, None])
        correction = tl.exp2(maximum - shift)
        total = total * correction + tl.sum(weights, 1)
        v_tile = gather(
            v, token, valid, static.kv_heads * static.v_head_dim, static.v_head_dim, static.block_v, static
        )  # fmt: skip
        acc = tl.dot(weights.to(v_tile.dtype), v_tile, acc * correction[:, None], input_precision=static.precision)
        maximum = new_maximum

    some = total > 0
    safe = tl.where(some, total, 1.0)
    tl.store(lse + own, tl.where(some, (maximum + tl.log2(safe)) * LN2, float("-inf")), mask=is_head)
    values = (acc / safe[:, None]).to(out.dtype.element_ty)
    v_mask = is_head[:, None] & (v_cols < static.v_head_dim)
    tl.store(out + own[:, None] * static.v_head_dim + v_cols, values, mask=v_mask)
