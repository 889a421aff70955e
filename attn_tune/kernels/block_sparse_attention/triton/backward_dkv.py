"""The gradients of key and value: a program per tile of keys walks its listed tiles of rows.

A program walks the rows of every query head that shares its keys and writes once: no atomics, the same bits each time.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import triton
import triton.language as tl

from attn_tune.kernels.block_sparse_attention._lists.lists import hide_unlisted, list_of, listed_of, mask_of_head
from attn_tune.kernels.block_sparse_attention.triton.config import DkvConfig
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.backward import add_values, logits_gradient
from attn_tune.kernels.lang.triton.device.logits import (
    finish_logits,
    load_columns,
    load_rows,
    point_extras,
    squash,
)
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
    store_keys,
)
from attn_tune.ops.block_sparse_attention.operands import BackwardInputs
from attn_tune.ops.block_sparse_attention.problem import Problem


def backward_dkv(problem: Problem, config: DkvConfig, inputs: BackwardInputs) -> tuple[jax.Array, jax.Array]:
    """``dk`` [B, S, K, H] and ``dv`` [B, S, K, V]."""
    operands = inputs.operands
    static, listed, lists = listed_of(problem, config, operands, longest_first=config.longest_first)
    k, v = operands.k, operands.v
    dk, dv = triton_call(
        dkv_kernel,
        *operands,
        inputs.dout,
        inputs.residuals.lse,
        inputs.delta,
        *lists,
        out_types=[jax.ShapeDtypeStruct(k.shape, k.dtype), jax.ShapeDtypeStruct(v.shape, v.dtype)],
        grid=(static.kv_blocks * problem.batch * problem.num_kv_heads, 1, 1),
        constexprs={"listed": listed, "static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        maxnreg=config.max_registers,
        name="block_sparse_attention_bwd_dkv",
    )
    return dk, dv


@triton.jit
def dkv_kernel(
    q,
    k,
    v,
    block_mask,
    q_segments,
    kv_segments,
    lengths,
    dout,
    lse,
    delta,
    tiles,
    counts,
    order,
    dk,
    dv,
    listed: tl.constexpr,
    static: tl.constexpr,
):
    """One program per tile of keys; logits are computed transposed, so that both products reuse them in registers."""
    block_k: tl.constexpr = static.block_k
    block_h: tl.constexpr = static.block_h
    block_v: tl.constexpr = static.block_v
    place, batch, kv_head = owned_tile(static.kv_blocks, static.num_kv_heads, False, static)
    block, tiles, full, seen = list_of(tiles, counts, order, place, batch, kv_head, static.kv_blocks, listed)
    first = block * block_k
    k = key_head(k, batch, kv_head, static.head_dim, static)
    v = key_head(v, batch, kv_head, static.v_head_dim, static)
    length = key_length(lengths, batch, static)
    k_tile = load_keys(k, first, length, static.head_dim, block_h, static.ragged_k, static)
    v_tile = load_keys(v, first, length, static.v_head_dim, block_v, static.ragged_k, static)
    dk_acc = tl.zeros([block_k, block_h], tl.float32)
    dv_acc = tl.zeros([block_k, block_v], tl.float32)
    head = kv_head * static.group_size
    optional = (q, q, q_segments, kv_segments, q, q, q, lengths)
    columns = load_columns(point_extras(optional, batch, head, static), first, 1, static)
    owned = (k_tile, v_tile, columns)
    arrays = (q, dout, lse, delta, block_mask)
    state = (dk_acc, dv_acc)
    state = walk_rows(state, owned, arrays, optional, batch, head, tiles, 0, full, False, listed, static)
    if listed.has_cuts:
        state = walk_rows(state, owned, arrays, optional, batch, head, tiles, full, seen, True, listed, static)
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
    tiles,
    begin,
    end,
    EDGE: tl.constexpr,
    listed: tl.constexpr,
    static: tl.constexpr,
):
    """Adds tiles ``[begin, end)`` of a list to ``(dk, dv)``, of every query head of the group, in one loop.

    Query heads with one list walk it one after the other; of heads with their own the list says which.
    """
    dk_acc, dv_acc = state
    k_tile, v_tile, columns = owned
    q, dout, lse, delta, block_mask = arrays
    repeats: tl.constexpr = static.group_size // listed.members
    per_head = tl.maximum(end - begin, 1)
    following = tl.load(tiles + tl.minimum(begin, listed.width - 1))
    for step in tl.range(0, (end - begin) * repeats):
        entry = following
        following = tl.load(tiles + tl.minimum(begin + (step + 1) % per_head, listed.width - 1))
        head = first_head
        if listed.members > 1:
            head += entry // static.q_blocks
            entry = entry % static.q_blocks
        elif static.group_size > 1:
            head += step // per_head
        start = entry * static.block_q
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
        x = finish_logits(squashed, extras, rows, columns, EDGE, static)
        x = hide_unlisted(x, mask_of_head(block_mask, batch, head, listed), rows, columns, EDGE, listed, static)
        weights = tl.exp2(x * static.late_scale - row_lse[None, :])
        dout_tile = load_queries(dout_head, start, static.v_head_dim, static.block_v, static)
        dv_acc, dweights = add_values(dv_acc, weights, dout_tile, v_tile, rows, columns, static)
        row_delta = load_delta(delta_head, index, static)
        dlogits = logits_gradient(weights, dweights, row_delta, squashed, static)
        dk_acc = tl.dot(dlogits.to(q_tile.dtype), q_tile, dk_acc, input_precision=static.precision)
    return dk_acc, dv_acc
