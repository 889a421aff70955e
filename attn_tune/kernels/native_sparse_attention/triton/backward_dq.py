"""The gradient of the query: the query heads of a group at one token walk the blocks that they name once more."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.tile import LOG2E
from attn_tune.kernels.native_sparse_attention.triton.config import DqConfig
from attn_tune.kernels.native_sparse_attention.triton.static import gather, named_tokens, own_query, static_of
from attn_tune.ops.native_sparse_attention.blocks import blocks_of
from attn_tune.ops.native_sparse_attention.operands import BackwardInputs
from attn_tune.ops.native_sparse_attention.problem import Problem


def backward_dq(problem: Problem, config: DqConfig, inputs: BackwardInputs) -> jax.Array:
    """``dq`` [B, T, N, H]."""
    o = inputs.operands
    firsts = blocks_of(problem, o.cu_seqlens).firsts if problem.is_packed else None
    (dq,) = triton_call(
        dq_kernel,
        *(o.q, o.k, o.v, o.indices, firsts, inputs.dout, inputs.residuals.lse, inputs.delta),
        out_types=[jax.ShapeDtypeStruct(o.q.shape, o.q.dtype)],
        grid=(o.q.shape[0] * o.q.shape[1] * problem.num_kv_heads, 1, 1),
        constexprs={"static": static_of(problem, config)},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        name="native_sparse_attention_bwd_dq",
    )
    return dq


@triton.jit
def dq_kernel(q, k, v, indices, firsts, dout, lse, delta, dq, static: tl.constexpr):
    """One program per query and key head."""
    row, kv_head, query, first, position = own_query(firsts, static)
    token_row = row * static.q_len + query
    head = tl.arange(0, static.block_n)
    is_head = head < static.group
    own = token_row * static.heads + kv_head * static.group + head
    h_cols = tl.arange(0, static.block_h)[None, :]
    v_cols = tl.arange(0, static.block_v)[None, :]
    q_mask = is_head[:, None] & (h_cols < static.head_dim)
    v_mask = is_head[:, None] & (v_cols < static.v_head_dim)
    q_tile = tl.load(q + own[:, None] * static.head_dim + h_cols, mask=q_mask, other=0.0)
    dout_tile = tl.load(dout + own[:, None] * static.v_head_dim + v_cols, mask=v_mask, other=0.0)
    row_lse = tl.load(lse + own, mask=is_head, other=0.0)
    # Rows that see nothing have no valid key.
    row_lse = tl.where(row_lse == float("-inf"), 0.0, row_lse) * LOG2E
    row_delta = tl.load(delta + own, mask=is_head, other=0.0)

    indices += (token_row * static.kv_heads + kv_head) * static.selected
    keys = (row * static.kv_len + first) * static.kv_heads + kv_head
    k += keys * static.head_dim
    v += keys * static.v_head_dim
    acc = tl.full([static.block_n, static.block_h], 0.0, tl.float32)
    for start in tl.range(0, static.selected * static.block_size, static.block_k):
        token, valid = named_tokens(indices, start, position, static)
        k_tile = gather(k, token, valid, static.kv_heads * static.head_dim, static.head_dim, static.block_h, static)
        v_tile = gather(
            v, token, valid, static.kv_heads * static.v_head_dim, static.v_head_dim, static.block_v, static
        )  # fmt: skip
        x = tl.dot(q_tile, tl.trans(k_tile), input_precision=static.precision) * static.scale2
        weights = tl.where(valid[None, :], tl.exp2(x - row_lse[:, None]), 0.0)
        dweights = tl.dot(dout_tile, tl.trans(v_tile), input_precision=static.precision)
        dlogits = weights * (dweights - row_delta[:, None])
        acc = tl.dot(dlogits.to(k_tile.dtype), k_tile, acc, input_precision=static.precision)
    gradient = (acc * static.scale).to(dq.dtype.element_ty)
    tl.store(dq + own[:, None] * static.head_dim + h_cols, gradient, mask=q_mask)
