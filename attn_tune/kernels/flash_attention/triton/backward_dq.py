"""The gradient of the query: a program per tile of rows walks the keys that its rows see."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import triton
import triton.language as tl

from attn_tune.kernels._common.triton_call import triton_call
from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.flash_attention.triton.config import DqConfig
from attn_tune.kernels.flash_attention.triton.static import static_of
from attn_tune.kernels.flash_attention.triton.tile import (
    finish_logits,
    head_pointer,
    kept,
    key_range,
    load_columns,
    load_lse,
    load_rows,
    load_tile,
    owned_tile,
    point_extras,
    row_pointer,
    squash,
    store_tile,
)


def backward_dq(problem: Problem, config: DqConfig, arrays: tuple) -> jax.Array:
    """``dq`` [B, T, N, H]; ``arrays`` as from ``backward.kernel_arrays``."""
    static = static_of(problem, config)
    q = arrays[0]
    (dq,) = triton_call(
        dq_kernel,
        *arrays,
        out_types=[jax.ShapeDtypeStruct(q.shape, q.dtype)],
        grid=(static.q_blocks * problem.batch * problem.num_q_heads, 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        name="flash_attention_bwd_dq",
    )
    return dq


@triton.jit
def dq_kernel(
    q,
    k,
    v,
    dout,
    lse,
    delta,
    bias,
    mask,
    q_segments,
    kv_segments,
    q_positions,
    kv_positions,
    dropout,
    dq,
    static: tl.constexpr,
):
    """One program per tile of query rows."""
    heads: tl.constexpr = static.num_q_heads
    block_q: tl.constexpr = static.block_q
    block_h: tl.constexpr = static.block_h
    block, batch, head = owned_tile(static.q_blocks, heads, static.skips_right, static)
    first = block * static.block_q
    extras = point_extras(
        bias, mask, q_segments, kv_segments, q_positions, kv_positions, dropout, batch, head, static
    )
    rows = load_rows(extras, first, 1, static)
    index = first + tl.arange(0, static.block_q)
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
    dout = head_pointer(dout, batch, head, static.q_len, heads, static.v_head_dim)
    dout_tile = load_tile(
        dout,
        first,
        heads * static.v_head_dim,
        static.q_len,
        static.v_head_dim,
        static.block_q,
        static.block_v,
        static.ragged_q,
    )
    row_lse = load_lse(row_pointer(lse, batch, head, static.q_len, heads), index, static)
    delta = row_pointer(delta, batch, head, static.q_len, heads)
    row_delta = tl.load(delta + index, mask=index < static.q_len, other=0.0)
    kv_head = head // static.group_size
    k = head_pointer(k, batch, kv_head, static.kv_len, static.num_kv_heads, static.head_dim)
    v = head_pointer(v, batch, kv_head, static.kv_len, static.num_kv_heads, static.v_head_dim)

    acc = tl.zeros([block_q, block_h], tl.float32)
    tiles = (q_tile, dout_tile, row_lse, row_delta)
    begin, full_begin, full_end, end = key_range(first, static)
    if static.skips_left:
        acc = walk_keys(
            acc, tiles, k, v, extras, rows, begin, tl.minimum(full_begin, end), True, static
        )
    acc = walk_keys(acc, tiles, k, v, extras, rows, full_begin, full_end, False, static)
    if static.skips_right or static.ragged_k:
        acc = walk_keys(
            acc, tiles, k, v, extras, rows, tl.maximum(full_begin, full_end), end, True, static
        )

    dq = head_pointer(dq, batch, head, static.q_len, heads, static.head_dim)
    store_tile(
        dq,
        first,
        acc * static.scale,
        heads * static.head_dim,
        static.q_len,
        static.head_dim,
        static.block_q,
        static.block_h,
    )


@triton.jit
def walk_keys(acc, tiles, k, v, extras, rows, begin, end, EDGE: tl.constexpr, static: tl.constexpr):
    """Adds the keys in ``[begin, end)``."""
    q_tile, dout_tile, row_lse, row_delta = tiles
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
        squashed = squash(
            tl.dot(q_tile, tl.trans(k_tile), input_precision=static.precision), static
        )
        columns = load_columns(extras, start, 0, static)
        x = finish_logits(squashed, extras, rows, columns, EDGE, static)
        weights = tl.exp2(x * static.late_scale - row_lse[:, None])
        dweights = tl.dot(dout_tile, tl.trans(v_tile), input_precision=static.precision)
        if static.keep_threshold is not None:
            keep = kept(rows, columns, static)
            dweights = tl.where(keep, dweights * static.keep_scale, 0.0)
        dlogits = weights * (dweights - row_delta[:, None])
        if static.soft_cap is not None:
            dlogits *= 1.0 - squashed * squashed
        acc = tl.dot(dlogits.to(k_tile.dtype), k_tile, acc, input_precision=static.precision)
    return acc
