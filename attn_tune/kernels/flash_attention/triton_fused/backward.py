"""The backward in one launch: FlashAttention-2 (arXiv 2307.08691, algorithm 2) as written, dq by atomics.

A program owns a tile of keys and walks the rows of every query head that shares them. It computes each tile of logits
once, keeps dk and dv, and adds its share of dq to a buffer in float32: five products a pair of tiles where two
launches make seven, and q, k, v and dout are read once. The shares come in any order, so that dq may differ in its
last bits from run to run; dk and dv do not.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.flash_attention._triton.arrays import kernel_arrays
from attn_tune.kernels.flash_attention._triton.backward_dbias import backward_dbias, dbias_config
from attn_tune.kernels.flash_attention.triton_fused.config import BackwardConfig
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
from attn_tune.kernels.lang.triton.device.static import static_of
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
from attn_tune.ops.flash_attention.operands import BackwardInputs
from attn_tune.ops.flash_attention.problem import Problem


def backward(problem: Problem, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, jax.Array]:
    """``dq``, ``dk``, ``dv``, and ``dbias`` if the problem has a bias; each like its primal."""
    o = inputs.operands
    q, k, v = o.q, o.k, o.v
    arrays = kernel_arrays(inputs)
    static = static_of(problem, config, ranges=True)
    sums, dk, dv = triton_call(
        fused_kernel,
        *arrays,
        row_ranges(o.q_segments, o.kv_segments, static),
        out_types=[
            jax.ShapeDtypeStruct(q.shape, jnp.float32),
            jax.ShapeDtypeStruct(k.shape, k.dtype),
            jax.ShapeDtypeStruct(v.shape, v.dtype),
        ],
        zeroed=(True, False, False),
        grid=(static.kv_blocks * problem.batch * problem.num_kv_heads, 1, 1),
        constexprs={"transposed_dq": config.transposed_dq, "static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        maxnreg=config.max_registers,
        name="flash_attention_bwd_fused",
    )
    # Scaled once, here, and not at every addition.
    gradients = {"dq": (sums * problem.scale).astype(q.dtype), "dk": dk, "dv": dv}
    if problem.bias_dims is not None:
        gradients["dbias"] = backward_dbias(problem, dbias_config(problem), arrays)
    return gradients


@triton.jit
def fused_kernel(
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
    dk,
    dv,
    transposed_dq: tl.constexpr,
    static: tl.constexpr,
):
    """One program per tile of keys; logits are computed transposed, so that dk and dv take them from registers."""
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
    bounds = narrowed(row_range(first, static), ranges, batch, block, static.kv_blocks, static.block_q, static)
    if static.ragged_k:
        # Keys beyond the end are hidden from every row. The lse of a row may be so low that their weights are infinite,
        # and infinity times the zeros that stand for them is NaN in dq.
        begin, full_begin, full_end, end = bounds
        ends_here = first + block_k > static.kv_len
        bounds = (begin, tl.where(ends_here, end, full_begin), tl.where(ends_here, end, full_end), end)

    head = kv_head * static.group_size
    optional = (bias, mask, q_segments, kv_segments, q_positions, kv_positions, dropout, lengths)
    columns = load_columns(point_extras(optional, batch, head, static), first, 1, static)
    owned = (k_tile, v_tile, columns)
    arrays = (q, dout, lse, delta, dq)
    state = (tl.zeros([block_k, block_h], tl.float32), tl.zeros([block_k, block_v], tl.float32))
    if static.skips_right or static.has_ranges or static.ragged_k:
        state = walk_rows(state, owned, arrays, optional, batch, head, bounds, "before", transposed_dq, static)
    state = walk_rows(state, owned, arrays, optional, batch, head, bounds, "full", transposed_dq, static)
    if static.skips_left or static.has_ranges:
        state = walk_rows(state, owned, arrays, optional, batch, head, bounds, "after", transposed_dq, static)
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
    transposed_dq: tl.constexpr,
    static: tl.constexpr,
):
    """Adds one span of rows (``span_of``) of every query head of the group to ``(dk, dv)``, and its share to dq."""
    edge: tl.constexpr = PART != "full"
    dk_acc, dv_acc = state
    k_tile, v_tile, columns = owned
    q, dout, lse, delta, dq = arrays
    begin, end = span_of(bounds, PART)
    steps, per_head = steps_of(begin, end, static)
    for step in tl.range(0, steps * static.group_size):
        head, start = place_of_step(step, begin, per_head, first_head, static)
        extras = point_extras(optional, batch, head, static)
        rows = load_rows(extras, start, 0, static)
        index = start + tl.arange(0, static.block_q)
        q_head = query_head(q, batch, head, static.head_dim, static)
        q_tile = load_queries(q_head, start, static.head_dim, static.block_h, static)
        row_lse = load_lse(head_rows(lse, batch, head, static), index, static)
        squashed = squash(tl.dot(k_tile, tl.trans(q_tile), input_precision=static.precision), static)
        x = finish_logits(squashed, extras, rows, columns, edge, static)
        weights = tl.exp2(x * static.late_scale - row_lse[None, :])
        dout_head = query_head(dout, batch, head, static.v_head_dim, static)
        dout_tile = load_queries(dout_head, start, static.v_head_dim, static.block_v, static)
        dv_acc, dweights = add_values(dv_acc, weights, dout_tile, v_tile, rows, columns, static)
        row_delta = load_delta(head_rows(delta, batch, head, static), index, static)
        dlogits = logits_gradient(weights, dweights, row_delta, squashed, static)
        dlogits = dlogits.to(q_tile.dtype)
        dk_acc = tl.dot(dlogits, q_tile, dk_acc, input_precision=static.precision)
        if transposed_dq:
            # The keys are in shared memory for either side of a product, and this one takes warpgroups at any block_q.
            # The other way round 32 rows have none on Hopper, and the keys a second copy (32 KB at H128).
            share = tl.dot(tl.trans(k_tile), dlogits, input_precision=static.precision)
            share = tl.trans(share)
        else:
            share = tl.dot(tl.trans(dlogits), k_tile, input_precision=static.precision)
        dq_head = query_head(dq, batch, head, static.head_dim, static)
        add_queries(dq_head, start, share, static)
    return dk_acc, dv_acc


@triton.jit
def add_queries(head, start, tile, static: tl.constexpr):
    """Adds a ``[block_q, block_h]`` tile to dq from row ``start`` on; it is complete when the launch has ended."""
    stride: tl.constexpr = static.num_q_heads * static.head_dim
    rows = tl.arange(0, static.block_q)[:, None]
    cols = tl.arange(0, static.block_h)[None, :]
    pointers = head + tl.cast(start, tl.int64) * stride + (rows * stride + cols)
    inside = (start + rows < static.q_len) & (cols < static.head_dim)
    tl.atomic_add(pointers, tile, mask=inside, sem="relaxed")
