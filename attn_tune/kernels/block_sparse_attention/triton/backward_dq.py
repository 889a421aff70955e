"""The gradient of the query: a program per tile of rows walks its listed tiles of keys."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import triton
import triton.language as tl

from attn_tune.kernels.block_sparse_attention._lists.lists import hide_unlisted, list_of, listed_of, mask_of_head
from attn_tune.kernels.block_sparse_attention.triton.config import DqConfig
from attn_tune.kernels.lang.triton.call import triton_call
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
    load_delta,
    load_keys,
    load_lse,
    load_queries,
    owned_tile,
    query_head,
    store_queries,
)
from attn_tune.ops.block_sparse_attention.operands import BackwardInputs
from attn_tune.ops.block_sparse_attention.problem import Problem


def backward_dq(problem: Problem, config: DqConfig, inputs: BackwardInputs) -> jax.Array:
    """``dq`` [B, T, N, H]."""
    operands = inputs.operands
    static, listed, lists = listed_of(problem, config, operands, longest_first=config.longest_first)
    (dq,) = triton_call(
        dq_kernel,
        *operands,
        inputs.dout,
        inputs.residuals.lse,
        inputs.delta,
        *lists,
        out_types=[jax.ShapeDtypeStruct(operands.q.shape, operands.q.dtype)],
        grid=(static.q_blocks * problem.batch * problem.num_q_heads, 1, 1),
        constexprs={"listed": listed, "static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        maxnreg=config.max_registers,
        name="block_sparse_attention_bwd_dq",
    )
    return dq


@triton.jit
def dq_kernel(
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
    dq,
    listed: tl.constexpr,
    static: tl.constexpr,
):
    """One program per tile of query rows."""
    block_q: tl.constexpr = static.block_q
    block_h: tl.constexpr = static.block_h
    place, batch, head = owned_tile(
        static.q_blocks, static.num_q_heads, static.skips_right and not listed.has_order, static
    )
    block, tiles, full, seen = list_of(tiles, counts, order, place, batch, head, static.q_blocks, listed)
    first = block * block_q
    extras = point_extras((q, q, q_segments, kv_segments, q, q, q, lengths), batch, head, static)
    rows = load_rows(extras, first, 1, static)
    index = first + tl.arange(0, block_q)
    q_tile = load_queries(query_head(q, batch, head, static.head_dim, static), first, static.head_dim, block_h, static)
    dout = query_head(dout, batch, head, static.v_head_dim, static)
    dout_tile = load_queries(dout, first, static.v_head_dim, static.block_v, static)
    row_lse = load_lse(head_rows(lse, batch, head, static), index, static)
    row_delta = load_delta(head_rows(delta, batch, head, static), index, static)
    kv_head = head // static.group_size
    k = key_head(k, batch, kv_head, static.head_dim, static)
    v = key_head(v, batch, kv_head, static.v_head_dim, static)
    mask = mask_of_head(block_mask, batch, head, listed)

    acc = tl.zeros([block_q, block_h], tl.float32)
    owned = (q_tile, dout_tile, row_lse, row_delta, rows)
    acc = walk_keys(acc, owned, k, v, extras, mask, tiles, 0, full, False, listed, static)
    if listed.has_cuts:
        acc = walk_keys(acc, owned, k, v, extras, mask, tiles, full, seen, True, listed, static)
    dq = query_head(dq, batch, head, static.head_dim, static)
    store_queries(dq, first, acc * static.scale, static.head_dim, block_h, static)


@triton.jit
def walk_keys(
    acc, owned, k, v, extras, mask, tiles, begin, end, EDGE: tl.constexpr, listed: tl.constexpr, static: tl.constexpr
):
    """Adds tiles ``[begin, end)`` of a list."""
    q_tile, dout_tile, row_lse, row_delta, rows = owned
    ragged: tl.constexpr = EDGE and static.ragged_k
    following = tl.load(tiles + tl.minimum(begin, listed.width - 1))
    for step in tl.range(begin, end):
        start = following * static.block_k
        following = tl.load(tiles + tl.minimum(step + 1, listed.width - 1))
        k_tile = load_keys(k, start, extras.length, static.head_dim, static.block_h, ragged, static)
        v_tile = load_keys(v, start, extras.length, static.v_head_dim, static.block_v, ragged, static)
        squashed = squash(tl.dot(q_tile, tl.trans(k_tile), input_precision=static.precision), static)
        columns = load_columns(extras, start, 0, static)
        x = finish_logits(squashed, extras, rows, columns, EDGE, static)
        x = hide_unlisted(x, mask, rows, columns, EDGE, listed, static)
        weights = tl.exp2(x * static.late_scale - row_lse[:, None])
        dweights = tl.dot(dout_tile, tl.trans(v_tile), input_precision=static.precision)
        dlogits = weights * (dweights - row_delta[:, None])
        if static.soft_cap is not None:
            dlogits *= 1.0 - squashed * squashed
        acc = tl.dot(dlogits.to(k_tile.dtype), k_tile, acc, input_precision=static.precision)
    return acc
