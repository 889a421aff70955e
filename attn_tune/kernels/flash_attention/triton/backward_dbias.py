"""The gradient of the bias: the gradient of the logits, summed in float32 over the axes where the bias broadcasts.

A bias that spans rows and columns gets one program per tile, which sums over broadcast batches and heads itself: the
only array as large as the logits is the result. Of any other bias the sums over rows or columns of every batch and
head are small; they are written and summed afterwards. No atomics: the same bits each time.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels._common.triton_call import triton_call
from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.flash_attention.triton.config import DbiasConfig
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
    point_extras,
    row_pointer,
    row_range,
    squash,
)


def backward_dbias(problem: Problem, config: DbiasConfig, arrays: tuple) -> jax.Array:
    """``dbias`` like the bias; ``arrays`` as from ``backward.kernel_arrays``."""
    static = static_of(problem, config)
    bias = arrays[6]
    dims = problem.bias_dims or ""
    batch, heads = problem.batch, problem.num_q_heads
    if dims.endswith("ts"):
        shape, dtype = bias.shape, bias.dtype
        programs = bias.shape[0] * bias.shape[1] * static.q_blocks * static.kv_blocks
        span = "pairs"
    elif dims.endswith("s"):
        shape, dtype = (batch, heads, 1, problem.kv_len), jnp.float32
        programs = batch * heads * static.kv_blocks
        span = "columns"
    else:
        shape, dtype = (batch, heads, problem.q_len, 1), jnp.float32
        programs = batch * heads * static.q_blocks
        span = "rows"
    (sums,) = triton_call(
        dbias_kernel,
        *arrays,
        out_types=[jax.ShapeDtypeStruct(shape, dtype)],
        grid=(programs, 1, 1),
        constexprs={
            "span": span,
            "batches": batch // bias.shape[0],
            "members": heads // bias.shape[1],
            "static": static,
        },
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        name="flash_attention_bwd_dbias",
    )
    axes = tuple(i for i in range(4) if bias.shape[i] == 1 and sums.shape[i] > 1)
    return (
        jnp.sum(sums, axes, keepdims=True).astype(bias.dtype) if axes else sums.astype(bias.dtype)
    )


@triton.jit
def dbias_kernel(
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
    dbias,
    span: tl.constexpr,
    batches: tl.constexpr,
    members: tl.constexpr,
    static: tl.constexpr,
):
    """One program per tile of pairs, or per tile of columns or rows of one head; see the module's docstring."""
    arrays = (q, k, v, dout, lse, delta)
    optional = (bias, mask, q_segments, kv_segments, q_positions, kv_positions, dropout)
    heads: tl.constexpr = static.num_q_heads
    block_q: tl.constexpr = static.block_q
    block_k: tl.constexpr = static.block_k
    program = tl.program_id(0)
    if span == "pairs":
        first_column = program % static.kv_blocks * block_k
        first_row = program // static.kv_blocks % static.q_blocks * block_q
        slot = program // (static.kv_blocks * static.q_blocks)
        begin, _, _, end = key_range(first_row, static)
        # A tile that causal and window hide sums nothing, and still writes its zeros.
        seen = ((first_column + block_k > begin) & (first_column < end)).to(tl.int32)
        total = tl.zeros([block_q, block_k], tl.float32)
        for item in range(seen * (batches * members)):
            batch = slot // (heads // members) + item // members
            head = slot % (heads // members) + item % members
            total += dlogits_tile(arrays, optional, batch, head, first_row, first_column, static)
        rows = first_row + tl.arange(0, block_q)[:, None]
        columns = first_column + tl.arange(0, block_k)[None, :]
        inside = (rows < static.q_len) & (columns < static.kv_len)
        dbias += slot.to(tl.int64) * (static.q_len * static.kv_len)
        dbias += tl.cast(first_row, tl.int64) * static.kv_len
        offsets = tl.arange(0, block_q)[:, None] * static.kv_len + columns
        tl.store(dbias + offsets, total.to(dbias.dtype.element_ty), mask=inside)
    elif span == "columns":
        first_column = program % static.kv_blocks * block_k
        slot = program // static.kv_blocks
        sums = tl.zeros([block_k], tl.float32)
        begin, _, _, end = row_range(first_column, static)
        for first_row in tl.range(begin, end, block_q):
            sums += tl.sum(
                dlogits_tile(arrays, optional, slot // heads, slot % heads, first_row, first_column, static), 0
            )  # fmt: skip
        columns = first_column + tl.arange(0, block_k)
        dbias += slot.to(tl.int64) * static.kv_len
        tl.store(dbias + columns, sums, mask=columns < static.kv_len)
    else:
        first_row = program % static.q_blocks * block_q
        slot = program // static.q_blocks
        sums = tl.zeros([block_q], tl.float32)
        begin, _, _, end = key_range(first_row, static)
        for first_column in tl.range(begin, end, block_k):
            sums += tl.sum(
                dlogits_tile(arrays, optional, slot // heads, slot % heads, first_row, first_column, static), 1
            )  # fmt: skip
        rows = first_row + tl.arange(0, block_q)
        dbias += slot.to(tl.int64) * static.q_len
        tl.store(dbias + rows, sums, mask=rows < static.q_len)


@triton.jit
def dlogits_tile(arrays, optional, batch, head, first_row, first_column, static: tl.constexpr):
    """The gradient of a ``[block_q, block_k]`` tile of logits after soft cap and bias; zero outside the arrays."""
    q, k, v, dout, lse, delta = arrays
    bias, mask, q_segments, kv_segments, q_positions, kv_positions, dropout = optional
    heads: tl.constexpr = static.num_q_heads
    kv_heads: tl.constexpr = static.num_kv_heads
    extras = point_extras(
        bias, mask, q_segments, kv_segments, q_positions, kv_positions, dropout, batch, head, static
    )
    rows = load_rows(extras, first_row, 1, static)
    columns = load_columns(extras, first_column, 0, static)
    index = first_row + tl.arange(0, static.block_q)
    kv_head = head // static.group_size
    q_tile = load_tile(
        head_pointer(q, batch, head, static.q_len, heads, static.head_dim),
        first_row, heads * static.head_dim, static.q_len, static.head_dim,
        static.block_q, static.block_h, static.ragged_q,
    )  # fmt: skip
    k_tile = load_tile(
        head_pointer(k, batch, kv_head, static.kv_len, kv_heads, static.head_dim),
        first_column, kv_heads * static.head_dim, static.kv_len, static.head_dim,
        static.block_k, static.block_h, static.ragged_k,
    )  # fmt: skip
    v_tile = load_tile(
        head_pointer(v, batch, kv_head, static.kv_len, kv_heads, static.v_head_dim),
        first_column, kv_heads * static.v_head_dim, static.kv_len, static.v_head_dim,
        static.block_k, static.block_v, static.ragged_k,
    )  # fmt: skip
    dout_tile = load_tile(
        head_pointer(dout, batch, head, static.q_len, heads, static.v_head_dim),
        first_row, heads * static.v_head_dim, static.q_len, static.v_head_dim,
        static.block_q, static.block_v, static.ragged_q,
    )  # fmt: skip
    row_lse = load_lse(row_pointer(lse, batch, head, static.q_len, heads), index, static)
    delta = row_pointer(delta, batch, head, static.q_len, heads)
    row_delta = tl.load(delta + index, mask=index < static.q_len, other=0.0)
    x = squash(tl.dot(q_tile, tl.trans(k_tile), input_precision=static.precision), static)
    x = finish_logits(x, extras, rows, columns, True, static)
    weights = tl.exp2(x * static.late_scale - row_lse[:, None])
    dweights = tl.dot(dout_tile, tl.trans(v_tile), input_precision=static.precision)
    if static.keep_threshold is not None:
        keep = kept(rows, columns, static)
        dweights = tl.where(keep, dweights * static.keep_scale, 0.0)
    return weights * (dweights - row_delta[:, None])
