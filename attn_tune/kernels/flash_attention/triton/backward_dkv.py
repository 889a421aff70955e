"""The gradients of key and value: FlashAttention-2 (arXiv 2307.08691, algorithm 2), a program per tile of keys.

A program walks the rows of every query head that shares its keys and writes once: no atomics, the same bits each time.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import triton
import triton.language as tl

from attn_tune.kernels.flash_attention.triton.config import DkvConfig
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.backward import (
    add_values,
    logits_gradient,
    place_of_step,
    steps_of,
)
from attn_tune.kernels.lang.triton.device.logits import (
    finish_logits,
    load_columns,
    load_rows,
    point_extras,
    squash,
)
from attn_tune.kernels.lang.triton.device.ranges import narrowed, row_ranges
from attn_tune.kernels.lang.triton.device.static import skips_segments, static_of
from attn_tune.kernels.lang.triton.device.tile import (
    head_rows,
    key_head,
    key_length,
    load_delta,
    load_keys,
    load_lse,
    load_queries,
    owned_tile,
    query_head,
    row_range,
    span_of,
    store_keys,
)
from attn_tune.ops.flash_attention.problem import Problem


def backward_dkv(problem: Problem, config: DkvConfig, arrays: tuple) -> tuple[jax.Array, jax.Array]:
    """``dk`` [B, S, K, H] and ``dv`` [B, S, K, V]; ``arrays`` as from ``backward.kernel_arrays``."""
    skips = skips_segments(problem, config.block_q, config.block_k, of_keys=True)
    static = static_of(problem, config, ranges=skips)
    k, v, q_segments, kv_segments = *arrays[1:3], *arrays[8:10]
    dk, dv = triton_call(
        dkv_kernel,
        *arrays,
        row_ranges(q_segments, kv_segments, static),
        out_types=[jax.ShapeDtypeStruct(k.shape, k.dtype), jax.ShapeDtypeStruct(v.shape, v.dtype)],
        grid=(static.kv_blocks * problem.batch * problem.num_kv_heads, 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        maxnreg=config.max_registers,
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
    lengths,
    ranges,
    dk,
    dv,
    static: tl.constexpr,
):
    """One program per tile of keys; logits are computed transposed, so that both products reuse them in registers."""
    block_k: tl.constexpr = static.block_k
    block_h: tl.constexpr = static.block_h
    block_v: tl.constexpr = static.block_v
    # Under a causal mask the first keys have the most rows; natural order is longest first.
    block, batch, kv_head = owned_tile(static.kv_blocks, static.num_kv_heads, False, static)
    first = block * block_k
    k = key_head(k, batch, kv_head, static.head_dim, static)
    v = key_head(v, batch, kv_head, static.v_head_dim, static)
    length = key_length(lengths, batch, static)
    k_tile = load_keys(k, first, length, static.head_dim, block_h, static.ragged_k, static)
    v_tile = load_keys(v, first, length, static.v_head_dim, block_v, static.ragged_k, static)
    dk_acc = tl.zeros([block_k, block_h], tl.float32)
    dv_acc = tl.zeros([block_k, block_v], tl.float32)
    bounds = narrowed(row_range(first, static), ranges, batch, block, static.kv_blocks, static.block_q, static)

    head = kv_head * static.group_size
    optional = (bias, mask, q_segments, kv_segments, q_positions, kv_positions, dropout, lengths)
    columns = load_columns(point_extras(optional, batch, head, static), first, 1, static)
    owned = (k_tile, v_tile, columns)
    arrays = (q, dout, lse, delta)
    state = (dk_acc, dv_acc)
    if static.skips_right or static.has_ranges:
        state = walk_rows(state, owned, arrays, optional, batch, head, bounds, "before", static)
    state = walk_rows(state, owned, arrays, optional, batch, head, bounds, "full", static)
    if static.skips_left or static.has_ranges:
        state = walk_rows(state, owned, arrays, optional, batch, head, bounds, "after", static)
    dk_acc, dv_acc = state

    dk = key_head(dk, batch, kv_head, static.head_dim, static)
    dv = key_head(dv, batch, kv_head, static.v_head_dim, static)
    store_keys(dk, first, dk_acc * static.scale, static.head_dim, block_h, static)
    store_keys(dv, first, dv_acc, static.v_head_dim, block_v, static)


@triton.jit
def walk_rows(
    state,
    owned,
    arrays,
    optional,
    batch,
    first_head,
    bounds,
    PART: tl.constexpr,
    static: tl.constexpr,
):
    """Adds one span of rows (``span_of``) of every query head of the group to ``(dk, dv)``.

    A loop over rows in a loop over heads spills 230 bytes at 64x128, 8 warps, H128 where this one loop spills 40.
    """
    edge: tl.constexpr = PART != "full"
    dk_acc, dv_acc = state
    k_tile, v_tile, columns = owned
    q, dout, lse, delta = arrays
    begin, end = span_of(bounds, PART)
    steps, per_head = steps_of(begin, end, static)
    for step in tl.range(0, steps * static.group_size):
        head, start = place_of_step(step, begin, per_head, first_head, static)
        extras = point_extras(optional, batch, head, static)
        q_head = query_head(q, batch, head, static.head_dim, static)
        dout_head = query_head(dout, batch, head, static.v_head_dim, static)
        lse_head = head_rows(lse, batch, head, static)
        delta_head = head_rows(delta, batch, head, static)
        rows = load_rows(extras, start, 0, static)
        index = start + tl.arange(0, static.block_q)
        q_tile = load_queries(q_head, start, static.head_dim, static.block_h, static)
        row_lse = load_lse(lse_head, index, static)
        squashed = squash(tl.dot(k_tile, tl.trans(q_tile), input_precision=static.precision), static)
        x = finish_logits(squashed, extras, rows, columns, edge, static)
        weights = tl.exp2(x * static.late_scale - row_lse[None, :])
        dout_tile = load_queries(dout_head, start, static.v_head_dim, static.block_v, static)
        dv_acc, dweights = add_values(dv_acc, weights, dout_tile, v_tile, rows, columns, static)
        row_delta = load_delta(delta_head, index, static)
        dlogits = logits_gradient(weights, dweights, row_delta, squashed, static)
        dk_acc = tl.dot(dlogits.to(q_tile.dtype), q_tile, dk_acc, input_precision=static.precision)
    return dk_acc, dv_acc
