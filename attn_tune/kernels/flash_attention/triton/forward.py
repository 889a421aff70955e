"""The forward: FlashAttention-2 (arXiv 2307.08691, algorithm 1) with the softmax in base 2."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels._common.triton_call import triton_call
from attn_tune.kernels.flash_attention.operands import Operands
from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.flash_attention.triton.config import ForwardConfig
from attn_tune.kernels.flash_attention.triton.static import static_of
from attn_tune.kernels.flash_attention.triton.tile import (
    LN2,
    LOG2E,
    finish_logits,
    head_pointer,
    kept,
    key_range,
    load_columns,
    load_rows,
    load_tile,
    owned_tile,
    point_extras,
    row_pointer,
    squash,
    store_tile,
)


def forward(problem: Problem, config: ForwardConfig, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [B, T, N, V] in q's dtype and ``lse`` [B, N, T] in float32."""
    static = static_of(problem, config)
    batch, rows, heads = problem.batch, problem.q_len, problem.num_q_heads
    out, lse = triton_call(
        forward_kernel,
        *operands,
        out_types=[
            jax.ShapeDtypeStruct((batch, rows, heads, problem.v_head_dim), operands.q.dtype),
            jax.ShapeDtypeStruct((batch, heads, rows), jnp.float32),
        ],
        grid=(static.q_blocks * batch * heads, 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
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
    out,
    lse,
    static: tl.constexpr,
):
    """One program per tile of query rows."""
    heads: tl.constexpr = static.num_q_heads
    block_q: tl.constexpr = static.block_q
    block_v: tl.constexpr = static.block_v
    block, batch, head = owned_tile(static.q_blocks, heads, static.skips_right, static)
    first = block * static.block_q
    extras = point_extras(
        bias, mask, q_segments, kv_segments, q_positions, kv_positions, dropout, batch, head, static
    )
    rows = load_rows(extras, first, 1, static)
    q = head_pointer(q, batch, head, static.q_len, heads, static.head_dim)
    q_tile = load_tile(
        q,
        first,
        heads * static.head_dim,
        static.q_len,
        static.head_dim,
        static.block_q,
        static.block_h,
        static.ragged_q,
    )
    kv_head = head // static.group_size
    k = head_pointer(k, batch, kv_head, static.kv_len, static.num_kv_heads, static.head_dim)
    v = head_pointer(v, batch, kv_head, static.kv_len, static.num_kv_heads, static.v_head_dim)

    maximum = tl.full([block_q], float("-inf"), tl.float32)
    total = tl.zeros([block_q], tl.float32)
    acc = tl.zeros([block_q, block_v], tl.float32)
    if sinks is not None:
        # The sink is the first logit seen: it joins the sum once, whatever the tiles.
        sink = tl.load(sinks + head) * LOG2E
        maximum = tl.zeros_like(maximum) + sink
        total += tl.where(sink == float("-inf"), 0.0, 1.0)

    begin, full_begin, full_end, end = key_range(first, static)
    state = (acc, total, maximum)
    if static.skips_left:
        state = walk_keys(
            state, q_tile, k, v, extras, rows, begin, tl.minimum(full_begin, end), True, static
        )
    state = walk_keys(state, q_tile, k, v, extras, rows, full_begin, full_end, False, static)
    if static.skips_right or static.ragged_k:
        state = walk_keys(
            state, q_tile, k, v, extras, rows, tl.maximum(full_begin, full_end), end, True, static
        )
    acc, total, maximum = state

    seen = total > 0
    kept_scale = tl.where(seen, static.keep_scale / tl.where(seen, total, 1.0), 0.0)
    out = head_pointer(out, batch, head, static.q_len, heads, static.v_head_dim)
    store_tile(
        out,
        first,
        acc * kept_scale[:, None],
        heads * static.v_head_dim,
        static.q_len,
        static.v_head_dim,
        static.block_q,
        static.block_v,
    )
    row = first + tl.arange(0, static.block_q)
    row_lse = tl.where(seen, (maximum + tl.log2(tl.where(seen, total, 1.0))) * LN2, float("-inf"))
    lse = row_pointer(lse, batch, head, static.q_len, heads)
    tl.store(lse + row, row_lse, mask=row < static.q_len)


@triton.jit
def walk_keys(
    state, q_tile, k, v, extras, rows, begin, end, EDGE: tl.constexpr, static: tl.constexpr
):
    """Folds the keys in ``[begin, end)`` into ``(accumulator, denominator, maximum)`` of the online softmax."""
    acc, total, maximum = state
    # Without a mask or an infinite bias every row of a full tile sees a finite logit.
    guarded: tl.constexpr = (
        EDGE
        or static.has_segments
        or static.has_positions
        or static.mask_strides is not None
        or static.bias_strides is not None
    )
    ragged: tl.constexpr = EDGE and static.ragged_k
    for start in tl.range(begin, end, static.block_k):
        k_tile = load_tile(
            k,
            start,
            static.num_kv_heads * static.head_dim,
            static.kv_len,
            static.head_dim,
            static.block_k,
            static.block_h,
            ragged,
        )
        x = squash(tl.dot(q_tile, tl.trans(k_tile), input_precision=static.precision), static)
        columns = load_columns(extras, start, 0, static)
        x = finish_logits(x, extras, rows, columns, EDGE, static)
        new_maximum = tl.maximum(maximum, tl.max(x, 1) * static.late_scale)
        shift = new_maximum
        if guarded:
            shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(x * static.late_scale - shift[:, None])
        correction = tl.exp2(maximum - shift)
        total = total * correction + tl.sum(weights, 1)
        if static.keep_threshold is not None:
            weights = tl.where(kept(rows, columns, static), weights, 0.0)
        v_tile = load_tile(
            v,
            start,
            static.num_kv_heads * static.v_head_dim,
            static.kv_len,
            static.v_head_dim,
            static.block_k,
            static.block_v,
            ragged,
        )
        acc = tl.dot(
            weights.to(v_tile.dtype),
            v_tile,
            acc * correction[:, None],
            input_precision=static.precision,
        )
        maximum = new_maximum
    return acc, total, maximum
