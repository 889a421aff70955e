"""The forward: FlashAttention-2 (arXiv 2307.08691, algorithm 1) with the softmax in base 2."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.flash_attention._triton.arrays import forward_arrays
from attn_tune.kernels.flash_attention.triton.config import ForwardConfig
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.logits import load_rows, point_extras
from attn_tune.kernels.lang.triton.device.ranges import key_ranges, narrowed
from attn_tune.kernels.lang.triton.device.softmax import walk_keys
from attn_tune.kernels.lang.triton.device.static import skips_segments, static_of
from attn_tune.kernels.lang.triton.device.tile import (
    LN2,
    LOG2E,
    head_rows,
    key_head,
    key_range,
    load_queries,
    owned_tile,
    query_head,
    store_queries,
)
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem


def forward(problem: Problem, config: ForwardConfig, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [B, T, N, V] in q's dtype and ``lse`` [B, N, T] in float32."""
    static = static_of(problem, config, ranges=skips_segments(problem, config.block_q, config.block_k))
    batch, rows, heads = problem.batch, problem.q_len, problem.num_q_heads
    out, lse = triton_call(
        forward_kernel,
        *forward_arrays(operands),
        key_ranges(operands.q_segments, operands.kv_segments, static),
        out_types=[
            jax.ShapeDtypeStruct((batch, rows, heads, problem.v_head_dim), operands.q.dtype),
            jax.ShapeDtypeStruct((batch, heads, rows), jnp.float32),
        ],
        grid=(static.q_blocks * batch * heads, 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        maxnreg=config.max_registers,
        name="flash_attention_fwd",
    )
    return {"out": out, "lse": lse}


@triton.jit
def forward_kernel(
    q,
    k,
    v,
    bias,
    mask,
    q_segments,
    kv_segments,
    q_positions,
    kv_positions,
    sinks,
    dropout,
    lengths,
    ranges,
    out,
    lse,
    static: tl.constexpr,
):
    """One program per tile of query rows."""
    block_q: tl.constexpr = static.block_q
    block_h: tl.constexpr = static.block_h
    block_v: tl.constexpr = static.block_v
    block, batch, head = owned_tile(static.q_blocks, static.num_q_heads, static.skips_right, static)
    first = block * block_q
    optional = (bias, mask, q_segments, kv_segments, q_positions, kv_positions, dropout, lengths)
    extras = point_extras(optional, batch, head, static)
    rows = load_rows(extras, first, 1, static)
    q_tile = load_queries(query_head(q, batch, head, static.head_dim, static), first, static.head_dim, block_h, static)
    kv_head = head // static.group_size
    k = key_head(k, batch, kv_head, static.head_dim, static)
    v = key_head(v, batch, kv_head, static.v_head_dim, static)

    maximum = tl.full([block_q], float("-inf"), tl.float32)
    total = tl.zeros([block_q], tl.float32)
    acc = tl.zeros([block_q, block_v], tl.float32)
    if sinks is not None:
        # The sink is the first logit seen: it joins the sum once, whatever the tiles.
        sink = tl.load(sinks + head) * LOG2E
        maximum = tl.zeros_like(maximum) + sink
        total += tl.where(sink == float("-inf"), 0.0, 1.0)

    bounds = narrowed(key_range(first, static), ranges, batch, block, static.q_blocks, static.block_k, static)
    state = (acc, total, maximum)
    if static.skips_left or static.has_ranges:
        state = walk_keys(state, q_tile, k, v, extras, rows, bounds, "before", static)
    state = walk_keys(state, q_tile, k, v, extras, rows, bounds, "full", static)
    if static.skips_right or static.ragged_k or static.has_ranges:
        state = walk_keys(state, q_tile, k, v, extras, rows, bounds, "after", static)
    acc, total, maximum = state

    seen = total > 0
    kept_scale = tl.where(seen, static.keep_scale / tl.where(seen, total, 1.0), 0.0)
    out = query_head(out, batch, head, static.v_head_dim, static)
    store_queries(out, first, acc * kept_scale[:, None], static.v_head_dim, block_v, static)
    row = first + tl.arange(0, static.block_q)
    row_lse = tl.where(seen, (maximum + tl.log2(tl.where(seen, total, 1.0))) * LN2, float("-inf"))
    lse = head_rows(lse, batch, head, static)
    tl.store(lse + row, row_lse, mask=row < static.q_len)
