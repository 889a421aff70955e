"""The forward: FlashAttention-2 (arXiv 2307.08691, algorithm 1) over the listed tiles, with the softmax in base 2."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.block_sparse_attention._lists.lists import hide_unlisted, list_of, listed_of, mask_of_head
from attn_tune.kernels.block_sparse_attention.triton.config import ForwardConfig
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.logits import (
    finish_logits,
    load_columns,
    load_rows,
    point_extras,
    squash,
)
from attn_tune.kernels.lang.triton.device.tile import (
    LN2,
    head_rows,
    key_head,
    load_keys,
    load_queries,
    owned_tile,
    query_head,
    store_queries,
)
from attn_tune.ops.block_sparse_attention.operands import Operands
from attn_tune.ops.block_sparse_attention.problem import Problem


def forward(problem: Problem, config: ForwardConfig, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [B, T, N, V] in q's dtype and ``lse`` [B, N, T] in float32."""
    static, listed, lists = listed_of(problem, config, operands, longest_first=config.longest_first)
    batch, rows, heads = problem.batch, problem.q_len, problem.num_q_heads
    out, lse = triton_call(
        forward_kernel,
        *operands,
        *lists,
        out_types=[
            jax.ShapeDtypeStruct((batch, rows, heads, problem.v_head_dim), operands.q.dtype),
            jax.ShapeDtypeStruct((batch, heads, rows), jnp.float32),
        ],
        grid=(static.q_blocks * batch * heads, 1, 1),
        constexprs={"listed": listed, "static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        maxnreg=config.max_registers,
        name="block_sparse_attention_fwd",
    )
    return {"out": out, "lse": lse}


@triton.jit
def forward_kernel(
    q,
    k,
    v,
    block_mask,
    q_segments,
    kv_segments,
    lengths,
    tiles,
    counts,
    order,
    out,
    lse,
    listed: tl.constexpr,
    static: tl.constexpr,
):
    """One program per tile of query rows."""
    block_q: tl.constexpr = static.block_q
    block_v: tl.constexpr = static.block_v
    place, batch, head = owned_tile(
        static.q_blocks, static.num_q_heads, static.skips_right and not listed.has_order, static
    )
    block, tiles, full, seen = list_of(tiles, counts, order, place, batch, head, static.q_blocks, listed)
    first = block * block_q
    extras = point_extras((q, q, q_segments, kv_segments, q, q, q, lengths), batch, head, static)
    rows = load_rows(extras, first, 1, static)
    q_tile = load_queries(
        query_head(q, batch, head, static.head_dim, static), first, static.head_dim, static.block_h, static
    )
    kv_head = head // static.group_size
    k = key_head(k, batch, kv_head, static.head_dim, static)
    v = key_head(v, batch, kv_head, static.v_head_dim, static)
    mask = mask_of_head(block_mask, batch, head, listed)
    maximum = tl.full([block_q], float("-inf"), tl.float32)
    total = tl.zeros([block_q], tl.float32)
    acc = tl.zeros([block_q, block_v], tl.float32)
    state = (acc, total, maximum)
    state = walk_keys(state, q_tile, k, v, extras, rows, mask, tiles, 0, full, False, listed, static)
    if listed.has_cuts:
        state = walk_keys(state, q_tile, k, v, extras, rows, mask, tiles, full, seen, True, listed, static)
    acc, total, maximum = state

    some = total > 0
    safe = tl.where(some, total, 1.0)
    out = query_head(out, batch, head, static.v_head_dim, static)
    store_queries(out, first, acc * tl.where(some, 1.0 / safe, 0.0)[:, None], static.v_head_dim, block_v, static)
    row = first + tl.arange(0, static.block_q)
    row_lse = tl.where(some, (maximum + tl.log2(safe)) * LN2, float("-inf"))
    tl.store(head_rows(lse, batch, head, static) + row, row_lse, mask=row < static.q_len)


@triton.jit
def walk_keys(
    state,
    q_tile,
    k,
    v,
    extras,
    rows,
    mask,
    tiles,
    begin,
    end,
    EDGE: tl.constexpr,
    listed: tl.constexpr,
    static: tl.constexpr,
):
    """Folds tiles ``[begin, end)`` of a list into ``(accumulator, denominator, maximum)`` of the online softmax."""
    acc, total, maximum = state
    ragged: tl.constexpr = EDGE and static.ragged_k
    # The number of the next tile is on its way while this one is worked on.
    following = tl.load(tiles + tl.minimum(begin, listed.width - 1))
    for step in tl.range(begin, end):
        start = following * static.block_k
        following = tl.load(tiles + tl.minimum(step + 1, listed.width - 1))
        k_tile = load_keys(k, start, extras.length, static.head_dim, static.block_h, ragged, static)
        x = squash(tl.dot(q_tile, tl.trans(k_tile), input_precision=static.precision), static)
        columns = load_columns(extras, start, 0, static)
        x = finish_logits(x, extras, rows, columns, EDGE, static)
        x = hide_unlisted(x, mask, rows, columns, EDGE, listed, static)
        new_maximum = tl.maximum(maximum, tl.max(x, 1) * static.late_scale)
        shift = new_maximum
        if EDGE:
            shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(x * static.late_scale - shift[:, None])
        correction = tl.exp2(maximum - shift)
        total = total * correction + tl.sum(weights, 1)
        v_tile = load_keys(v, start, extras.length, static.v_head_dim, static.block_v, ragged, static)
        acc = tl.dot(
            weights.to(v_tile.dtype), v_tile, acc * correction[:, None], input_precision=static.precision
        )  # fmt: skip
        maximum = new_maximum
    return acc, total, maximum
