"""The gradient of the query: a program per tile of rows walks the keys that its rows see."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import triton
import triton.language as tl

from attn_tune.kernels.flash_attention.triton.config import DqConfig
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.logits import (
    differentiate,
    load_columns,
    load_rows,
    point_extras,
    squash,
)
from attn_tune.kernels.lang.triton.device.ranges import key_ranges, narrowed
from attn_tune.kernels.lang.triton.device.static import skips_segments, static_of
from attn_tune.kernels.lang.triton.device.tile import (
    head_rows,
    key_head,
    key_range,
    load_delta,
    load_keys,
    load_lse,
    load_queries,
    owned_tile,
    query_head,
    span_of,
    store_queries,
)
from attn_tune.ops.flash_attention.problem import Problem


def backward_dq(problem: Problem, config: DqConfig, arrays: tuple) -> jax.Array:
    """``dq`` [B, T, N, H]; ``arrays`` as from ``backward.kernel_arrays``."""
    static = static_of(problem, config, ranges=skips_segments(problem, config.block_q, config.block_k))
    q, q_segments, kv_segments = arrays[0], *arrays[8:10]
    (dq,) = triton_call(
        dq_kernel,
        *arrays,
        key_ranges(q_segments, kv_segments, static),
        out_types=[jax.ShapeDtypeStruct(q.shape, q.dtype)],
        grid=(static.q_blocks * problem.batch * problem.num_q_heads, 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        maxnreg=config.max_registers,
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
    lengths,
    ranges,
    dq,
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
    index = first + tl.arange(0, block_q)
    q_tile = load_queries(query_head(q, batch, head, static.head_dim, static), first, static.head_dim, block_h, static)
    dout = query_head(dout, batch, head, static.v_head_dim, static)
    dout_tile = load_queries(dout, first, static.v_head_dim, block_v, static)
    row_lse = load_lse(head_rows(lse, batch, head, static), index, static)
    row_delta = load_delta(head_rows(delta, batch, head, static), index, static)
    kv_head = head // static.group_size
    k = key_head(k, batch, kv_head, static.head_dim, static)
    v = key_head(v, batch, kv_head, static.v_head_dim, static)

    acc = tl.zeros([block_q, block_h], tl.float32)
    owned = (q_tile, dout_tile, (row_lse, row_delta), rows)
    bounds = narrowed(key_range(first, static), ranges, batch, block, static.q_blocks, static.block_k, static)
    if static.skips_left or static.has_ranges:
        acc = walk_keys(acc, owned, k, v, extras, bounds, "before", static)
    acc = walk_keys(acc, owned, k, v, extras, bounds, "full", static)
    if static.skips_right or static.ragged_k or static.has_ranges:
        acc = walk_keys(acc, owned, k, v, extras, bounds, "after", static)

    dq = query_head(dq, batch, head, static.head_dim, static)
    store_queries(dq, first, acc * static.scale, static.head_dim, block_h, static)


@triton.jit
def walk_keys(acc, owned, k, v, extras, bounds, PART: tl.constexpr, static: tl.constexpr):
    """Adds one span of keys (``span_of``)."""
    edge: tl.constexpr = PART != "full"
    q_tile, dout_tile, statistics, rows = owned
    ragged: tl.constexpr = edge and static.ragged_k
    begin, end = span_of(bounds, PART)
    for start in tl.range(begin, end, static.block_k):
        k_tile = load_keys(k, start, extras.length, static.head_dim, static.block_h, ragged, static)
        v_tile = load_keys(v, start, extras.length, static.v_head_dim, static.block_v, ragged, static)
        squashed = squash(tl.dot(q_tile, tl.trans(k_tile), input_precision=static.precision), static)
        columns = load_columns(extras, start, 0, static)
        dlogits = differentiate(squashed, dout_tile, v_tile, statistics, extras, rows, columns, edge, static)
        if static.soft_cap is not None:
            dlogits *= 1.0 - squashed * squashed
        acc = tl.dot(dlogits.to(k_tile.dtype), k_tile, acc, input_precision=static.precision)
    return acc
