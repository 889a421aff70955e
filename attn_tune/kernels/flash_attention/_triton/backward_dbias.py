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

from attn_tune.kernels.flash_attention._triton.config import DbiasConfig
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.logits import (
    differentiate,
    load_columns,
    load_rows,
    point_extras,
    squash,
)
from attn_tune.kernels.lang.triton.device.static import padded, static_of
from attn_tune.kernels.lang.triton.device.tile import (
    head_rows,
    key_head,
    key_range,
    load_delta,
    load_keys,
    load_lse,
    load_queries,
    query_head,
    row_range,
)
from attn_tune.ops.flash_attention.problem import Problem

# Less than the 99 KB of the GPUs that have the least.
_SHARED_BYTES = 96 * 1024


def dbias_config(problem: Problem) -> DbiasConfig:
    """The bias gradient's tile: the largest up to 64 whose four operands fit the smallest shared memory."""
    size = 4 if problem.dtype == "float32" else 2
    row = 2 * size * (padded(problem.head_dim) + padded(problem.v_head_dim))
    block = 64
    while block > 16 and block * row > _SHARED_BYTES:
        block //= 2
    return DbiasConfig(block_q=block, block_k=block, num_warps=4, num_stages=1)


def backward_dbias(problem: Problem, config: DbiasConfig, arrays: tuple) -> jax.Array:
    """``dbias`` like the bias; ``arrays`` as from ``kernel_arrays``."""
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
    return jnp.sum(sums, axes, keepdims=True).astype(bias.dtype) if axes else sums.astype(bias.dtype)


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
    lengths,
    dbias,
    span: tl.constexpr,
    batches: tl.constexpr,
    members: tl.constexpr,
    static: tl.constexpr,
):
    """One program per tile of pairs, or per tile of columns or rows of one head; see the module's docstring."""
    arrays = (q, k, v, dout, lse, delta)
    optional = (bias, mask, q_segments, kv_segments, q_positions, kv_positions, dropout, lengths)
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
    extras = point_extras(optional, batch, head, static)
    rows = load_rows(extras, first_row, 1, static)
    columns = load_columns(extras, first_column, 0, static)
    index = first_row + tl.arange(0, static.block_q)
    kv_head = head // static.group_size
    q_tile = load_queries(
        query_head(q, batch, head, static.head_dim, static),
        first_row, static.head_dim, static.block_h, static,
    )  # fmt: skip
    k_tile = load_keys(
        key_head(k, batch, kv_head, static.head_dim, static),
        first_column, extras.length, static.head_dim, static.block_h, static.ragged_k, static,
    )  # fmt: skip
    v_tile = load_keys(
        key_head(v, batch, kv_head, static.v_head_dim, static),
        first_column, extras.length, static.v_head_dim, static.block_v, static.ragged_k, static,
    )  # fmt: skip
    dout_tile = load_queries(
        query_head(dout, batch, head, static.v_head_dim, static),
        first_row, static.v_head_dim, static.block_v, static,
    )  # fmt: skip
    statistics = (
        load_lse(head_rows(lse, batch, head, static), index, static),
        load_delta(head_rows(delta, batch, head, static), index, static),
    )
    squashed = squash(tl.dot(q_tile, tl.trans(k_tile), input_precision=static.precision), static)
    return differentiate(squashed, dout_tile, v_tile, statistics, extras, rows, columns, True, static)
