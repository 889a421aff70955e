"""The forward for short queries and long keys: a group's heads packed into one tile, its keys split over programs.

A tile holds the rows of all query heads that share keys, so that keys and values are read once for the group. With
``num_splits`` above 1 each program walks its part of the keys with the online softmax of FlashAttention-2 and leaves
its own normalised output and lse in float32; a second launch weighs them by their lse (Flash-Decoding).
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.flash_attention._triton.arrays import forward_arrays
from attn_tune.kernels.flash_attention.triton_split.combine import combine
from attn_tune.kernels.flash_attention.triton_split.config import ForwardConfig
from attn_tune.kernels.flash_attention.triton_split.packed import (
    load_packed_queries,
    load_packed_rows,
    packed_heads,
    packed_key_range,
    packed_offsets,
    part_of,
    point_packed_extras,
)
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.softmax import walk_keys
from attn_tune.kernels.lang.triton.device.static import static_of
from attn_tune.kernels.lang.triton.device.tile import LN2, LOG2E, key_head
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem


def forward(problem: Problem, config: ForwardConfig, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [B, T, N, V] in q's dtype and ``lse`` [B, N, T] in float32."""
    static = static_of(problem, config)
    batch, kv_heads = problem.batch, problem.num_kv_heads
    rows, width = problem.q_len * problem.group_size, problem.v_head_dim
    tiles = -(-rows // config.block_q)
    whole = [
        jax.ShapeDtypeStruct((batch, problem.q_len, problem.num_q_heads, width), operands.q.dtype),
        jax.ShapeDtypeStruct((batch, problem.num_q_heads, problem.q_len), jnp.float32),
    ]
    parts = [
        jax.ShapeDtypeStruct((batch, kv_heads, config.num_splits, rows, width), jnp.float32),
        jax.ShapeDtypeStruct((batch, kv_heads, config.num_splits, rows), jnp.float32),
    ]
    out, lse = triton_call(
        split_kernel,
        *forward_arrays(operands),
        out_types=whole if config.num_splits == 1 else parts,
        grid=(batch * kv_heads * config.num_splits * tiles, 1, 1),
        constexprs={"tiles": tiles, "num_splits": config.num_splits, "static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        maxnreg=config.max_registers,
        name="flash_attention_fwd_split",
    )
    if config.num_splits > 1:
        out, lse = combine(out, lse, whole, static)
    return {"out": out, "lse": lse}


@triton.jit
def split_kernel(
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
    out,
    lse,
    tiles: tl.constexpr,
    num_splits: tl.constexpr,
    static: tl.constexpr,
):
    """One program per tile of packed rows and part of its keys; tiles that read the same keys are innermost."""
    block_q: tl.constexpr = static.block_q
    block_v: tl.constexpr = static.block_v
    num_rows: tl.constexpr = static.q_len * static.group_size
    program = tl.program_id(0)
    first = program % tiles * block_q
    split = program // tiles % num_splits
    slot = program // (tiles * num_splits)
    batch = slot // static.num_kv_heads
    kv_head = slot % static.num_kv_heads

    optional = (bias, mask, q_segments, kv_segments, q_positions, kv_positions, dropout, lengths)
    heads = packed_heads(first, kv_head, static)
    extras = point_packed_extras(optional, batch, heads, static)
    rows = load_packed_rows(extras, first, static)
    q_tile = load_packed_queries(q, batch, kv_head, first, static)
    k = key_head(k, batch, kv_head, static.head_dim, static)
    v = key_head(v, batch, kv_head, static.v_head_dim, static)

    maximum = tl.full([block_q], float("-inf"), tl.float32)
    total = tl.zeros([block_q], tl.float32)
    acc = tl.zeros([block_q, block_v], tl.float32)
    if sinks is not None:
        # The first part counts the sink; an infinite one, as for the others, adds nothing.
        sink = tl.load(sinks + heads) * LOG2E
        maximum = tl.where(split == 0, sink, float("-inf"))
        total += tl.where(maximum == float("-inf"), 0.0, 1.0)

    bounds = part_of(packed_key_range(first, extras.length, static), split, num_splits, static)
    state = (acc, total, maximum)
    if static.skips_left:
        state = walk_keys(state, q_tile, k, v, extras, rows, bounds, "before", static)
    state = walk_keys(state, q_tile, k, v, extras, rows, bounds, "full", static)
    if static.skips_right or static.ragged_k:
        state = walk_keys(state, q_tile, k, v, extras, rows, bounds, "after", static)
    acc, total, maximum = state

    seen = total > 0
    kept_scale = tl.where(seen, static.keep_scale / tl.where(seen, total, 1.0), 0.0)
    acc *= kept_scale[:, None]
    log_sum = tl.where(seen, maximum + tl.log2(tl.where(seen, total, 1.0)), float("-inf"))
    index = first + tl.arange(0, block_q)
    cols = tl.arange(0, block_v)[None, :]
    inside = (index[:, None] < num_rows) & (cols < static.v_head_dim)
    if num_splits == 1:
        offsets = packed_offsets(index, batch, kv_head, static)
        out_rows = out + offsets[:, None] * static.v_head_dim + cols
        row = batch * static.num_q_heads + heads
        lse_rows = lse + row.to(tl.int64) * static.q_len + index // static.group_size
        tl.store(lse_rows, log_sum * LN2, mask=index < num_rows)
    else:
        part = (slot * num_splits + split).to(tl.int64) * num_rows
        out_rows = out + (part + index[:, None]) * static.v_head_dim + cols
        # In base 2, for the launch that weighs the parts.
        tl.store(lse + part + index, log_sum, mask=index < num_rows)
    tl.store(out_rows, acc.to(out.dtype.element_ty), mask=inside)
