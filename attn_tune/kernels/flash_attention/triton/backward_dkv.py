"""The gradients of key and value: FlashAttention-2 (arXiv 2307.08691, algorithm 2), a program per tile of keys.

A program walks the rows of every query head that shares its keys and writes once: no atomics, the same bits each time.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import triton
import triton.language as tl

from attn_tune.kernels._common.triton_call import triton_call
from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.flash_attention.triton.config import DkvConfig
from attn_tune.kernels.flash_attention.triton.static import static_of
from attn_tune.kernels.flash_attention.triton.tile import (
    finish_logits,
    head_pointer,
    kept,
    load_columns,
    load_lse,
    load_rows,
    load_tile,
    owned_tile,
    point_extras,
    row_pointer,
    row_range,
    squash,
    store_tile,
)


def backward_dkv(problem: Problem, config: DkvConfig, arrays: tuple) -> tuple[jax.Array, jax.Array]:
    """``dk`` [B, S, K, H] and ``dv`` [B, S, K, V]; ``arrays`` as from ``backward.kernel_arrays``."""
    static = static_of(problem, config)
    k, v = arrays[1:3]
    dk, dv = triton_call(
        dkv_kernel,
        *arrays,
        out_types=[jax.ShapeDtypeStruct(k.shape, k.dtype), jax.ShapeDtypeStruct(v.shape, v.dtype)],
        grid=(static.kv_blocks * problem.batch * problem.num_kv_heads, 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        name="flash_attention_bwd_dkv",
    )
    return dk, dv


@triton.jit
def dkv_kernel(
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
    dk,
    dv,
    static: tl.constexpr,
):
    """One program per tile of keys; logits are computed transposed, so that both products reuse them in registers."""
    kv_heads: tl.constexpr = static.num_kv_heads
    block_k: tl.constexpr = static.block_k
    block_h: tl.constexpr = static.block_h
    block_v: tl.constexpr = static.block_v
    # Under a causal mask the first keys have the most rows; natural order is longest first.
    block, batch, kv_head = owned_tile(static.kv_blocks, kv_heads, False, static)
    first = block * static.block_k
    k = head_pointer(k, batch, kv_head, static.kv_len, kv_heads, static.head_dim)
    v = head_pointer(v, batch, kv_head, static.kv_len, kv_heads, static.v_head_dim)
    k_tile = load_tile(
        k,
        first,
        kv_heads * static.head_dim,
        static.kv_len,
        static.head_dim,
        static.block_k,
        static.block_h,
        static.ragged_k,
    )
    v_tile = load_tile(
        v,
        first,
        kv_heads * static.v_head_dim,
        static.kv_len,
        static.v_head_dim,
        static.block_k,
        static.block_v,
        static.ragged_k,
    )
    dk_acc = tl.zeros([block_k, block_h], tl.float32)
    dv_acc = tl.zeros([block_k, block_v], tl.float32)
    begin, full_begin, full_end, end = row_range(first, static)

    head = kv_head * static.group_size
    optional = (bias, mask, q_segments, kv_segments, q_positions, kv_positions, dropout)
    columns = load_columns(point_all(optional, batch, head, static), first, 1, static)
    owned = (k_tile, v_tile, columns)
    arrays = (q, dout, lse, delta)
    if static.skips_right:
        dk_acc, dv_acc = walk_rows(
            dk_acc, dv_acc, owned, arrays, optional, batch, head,
            begin, tl.minimum(full_begin, end), True, static,
        )  # fmt: skip
    dk_acc, dv_acc = walk_rows(
        dk_acc, dv_acc, owned, arrays, optional, batch, head, full_begin, full_end, False, static
    )
    if static.skips_left:
        dk_acc, dv_acc = walk_rows(
            dk_acc, dv_acc, owned, arrays, optional, batch, head,
            tl.maximum(full_begin, full_end), end, True, static,
        )  # fmt: skip

    dk = head_pointer(dk, batch, kv_head, static.kv_len, kv_heads, static.head_dim)
    dv = head_pointer(dv, batch, kv_head, static.kv_len, kv_heads, static.v_head_dim)
    store_tile(
        dk,
        first,
        dk_acc * static.scale,
        kv_heads * static.head_dim,
        static.kv_len,
        static.head_dim,
        static.block_k,
        static.block_h,
    )
    store_tile(
        dv,
        first,
        dv_acc,
        kv_heads * static.v_head_dim,
        static.kv_len,
        static.v_head_dim,
        static.block_k,
        static.block_v,
    )


@triton.jit
def point_all(optional, batch, head, static: tl.constexpr):
    """``point_extras`` of a tuple."""
    bias, mask, q_segments, kv_segments, q_positions, kv_positions, dropout = optional
    return point_extras(
        bias, mask, q_segments, kv_segments, q_positions, kv_positions, dropout, batch, head, static
    )


@triton.jit
def walk_rows(
    dk_acc,
    dv_acc,
    owned,
    arrays,
    optional,
    batch,
    first_head,
    begin,
    end,
    EDGE: tl.constexpr,
    static: tl.constexpr,
):
    """Adds the rows in ``[begin, end)`` of every query head of the group to both gradients.

    One loop over heads and rows: a loop in a loop would drain the pipeline at every head, and spills 230 bytes at
    64x128, 8 warps, H128 where this spills 40.
    """
    k_tile, v_tile, columns = owned
    heads: tl.constexpr = static.num_q_heads
    steps = (tl.maximum(end - begin, 0) + static.block_q - 1) // static.block_q
    # Dividing by zero is undefined: the compiler would conclude that an empty range has a step, and load it.
    per_head = tl.maximum(steps, 1)
    for step in tl.range(0, steps * static.group_size):
        if static.group_size == 1:
            head = first_head
            start = begin + step * static.block_q
        else:
            head = first_head + step // per_head
            start = begin + step % per_head * static.block_q
        extras = point_all(optional, batch, head, static)
        q = head_pointer(arrays[0], batch, head, static.q_len, heads, static.head_dim)
        dout = head_pointer(arrays[1], batch, head, static.q_len, heads, static.v_head_dim)
        lse = row_pointer(arrays[2], batch, head, static.q_len, heads)
        delta = row_pointer(arrays[3], batch, head, static.q_len, heads)
        rows = load_rows(extras, start, 0, static)
        index = start + tl.arange(0, static.block_q)
        q_tile = load_tile(
            q,
            start,
            static.num_q_heads * static.head_dim,
            static.q_len,
            static.head_dim,
            static.block_q,
            static.block_h,
            static.ragged_q,
        )
        row_lse = load_lse(lse, index, static)
        squashed = squash(
            tl.dot(k_tile, tl.trans(q_tile), input_precision=static.precision), static
        )
        x = finish_logits(squashed, extras, rows, columns, EDGE, static)
        weights = tl.exp2(x * static.late_scale - row_lse[None, :])
        dout_tile = load_tile(
            dout,
            start,
            static.num_q_heads * static.v_head_dim,
            static.q_len,
            static.v_head_dim,
            static.block_q,
            static.block_v,
            static.ragged_q,
        )
        dweights = tl.dot(v_tile, tl.trans(dout_tile), input_precision=static.precision)
        used = weights
        if static.keep_threshold is not None:
            keep = kept(rows, columns, static)
            used = tl.where(keep, weights * static.keep_scale, 0.0)
            dweights = tl.where(keep, dweights * static.keep_scale, 0.0)
        dv_acc = tl.dot(
            used.to(dout_tile.dtype), dout_tile, dv_acc, input_precision=static.precision
        )
        row_delta = tl.load(delta + index, mask=index < static.q_len, other=0.0)
        dlogits = weights * (dweights - row_delta[None, :])
        if static.soft_cap is not None:
            dlogits *= 1.0 - squashed * squashed
        dk_acc = tl.dot(dlogits.to(q_tile.dtype), q_tile, dk_acc, input_precision=static.precision)
    return dk_acc, dv_acc
