"""The gradients of key and value: programs own keys of a block and walk the list of the queries that name it.

Long lists are cut into pieces of ``share`` queries, a program each; a second launch adds up the sums of a block's
pieces in order. There are no atomics: equal inputs give equal bits.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.device.tile import LOG2E
from attn_tune.kernels.native_sparse_attention._lists.lists import lists_of
from attn_tune.kernels.native_sparse_attention.triton.config import DkvConfig
from attn_tune.kernels.native_sparse_attention.triton.static import Static, static_of
from attn_tune.ops.native_sparse_attention.blocks import blocks_of
from attn_tune.ops.native_sparse_attention.operands import BackwardInputs
from attn_tune.ops.native_sparse_attention.problem import Problem

# Keys that a program of the second launch adds up.
_ADDED = 16


def backward_dkv(problem: Problem, config: DkvConfig, inputs: BackwardInputs) -> tuple[jax.Array, jax.Array]:
    """``dk`` [B, S, K, H] and ``dv`` [B, S, K, V]."""
    p, o = problem, inputs.operands
    static = static_of(p, config)
    blocks = blocks_of(p, o.cu_seqlens)
    lists = lists_of(p, o, blocks)
    owners = p.rows * p.num_kv_heads * p.blocks
    lengths = jnp.diff(lists.starts)
    pieces = jnp.cumsum((lengths + config.share - 1) // config.share, dtype=jnp.int32)
    # The place of each block's first piece, and the end of the last block's.
    pieces = jnp.concatenate([jnp.zeros(1, jnp.int32), pieces])
    most = owners + lists.queries.shape[0] // config.share
    place = jnp.arange(most, dtype=jnp.int32)
    owner = jnp.searchsorted(pieces, place, side="right", method="scan_unrolled").astype(jnp.int32) - 1
    sums = triton_call(
        dkv_kernel,
        *(o.q, o.k, o.v, inputs.dout, inputs.residuals.lse, inputs.delta),
        *(lists.queries, lists.starts, pieces, jnp.minimum(owner, owners - 1), blocks.begins, blocks.ends),
        out_types=[
            jax.ShapeDtypeStruct((most, p.block_size, width), jnp.float32) for width in (p.head_dim, p.v_head_dim)
        ],
        grid=(most * (p.block_size // config.block_k), 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        name="native_sparse_attention_bwd_dkv",
    )
    dk, dv = (
        _added(x, like, pieces, blocks.begins, blocks.ends, static, scale=scale, is_packed=p.is_packed)
        for x, like, scale in zip(sums, (o.k, o.v), (p.scale, 1.0), strict=True)
    )
    return dk, dv


def _added(
    sums: jax.Array,
    like: jax.Array,
    pieces: jax.Array,
    begins: jax.Array,
    ends: jax.Array,
    static: Static,
    *,
    scale: float,
    is_packed: bool,
) -> jax.Array:
    """The gradient of ``like``: the sums of each block's pieces, times ``scale``."""
    owners = pieces.shape[0] - 1
    (gradient,) = triton_call(
        add_kernel,
        *(sums, pieces, begins, ends),
        out_types=[jax.ShapeDtypeStruct(like.shape, like.dtype)],
        grid=(owners * (static.block_size // _ADDED), 1, 1),
        constexprs={
            "scale": scale,
            "width": like.shape[3],
            "block_w": padded(like.shape[3]),
            "rows": _ADDED,
            "static": static,
        },
        # Keys behind the last sequence are in no block.
        zeroed=(is_packed,),
        num_warps=4,
        num_stages=1,
        name="native_sparse_attention_bwd_add",
    )
    return gradient


@triton.jit
def dkv_kernel(
    q,
    k,
    v,
    dout,
    lse,
    delta,
    queries,
    starts,
    pieces,
    owners,
    begins,
    ends,
    dk_sums,
    dv_sums,
    static: tl.constexpr,
):
    """One program per piece of a list and tile of its keys; logits are transposed, so that all products reuse them."""
    parts: tl.constexpr = static.block_size // static.block_k
    piece = tl.program_id(0) // parts
    owner = tl.load(owners + piece)
    # There may be fewer pieces than places for them.
    is_piece = piece < tl.load(pieces + owner + 1)
    block = owner % static.blocks
    kv_head = owner // static.blocks % static.kv_heads
    row = (owner // (static.kv_heads * static.blocks)).to(tl.int64)
    inside = tl.program_id(0) % parts * static.block_k + tl.arange(0, static.block_k)
    token = tl.load(begins + block) + inside
    is_token = token < tl.where(is_piece, tl.load(ends + block), 0)
    keys = (row * static.kv_len + token) * static.kv_heads + kv_head
    h_cols = tl.arange(0, static.block_h)[None, :]
    v_cols = tl.arange(0, static.block_v)[None, :]
    h_mask = h_cols < static.head_dim
    v_mask = v_cols < static.v_head_dim
    k_tile = tl.load(k + keys[:, None] * static.head_dim + h_cols, mask=is_token[:, None] & h_mask, other=0.0)
    v_tile = tl.load(v + keys[:, None] * static.v_head_dim + v_cols, mask=is_token[:, None] & v_mask, other=0.0)
    begin = tl.load(starts + owner) + (piece - tl.load(pieces + owner)) * static.share
    end = tl.minimum(begin + static.share, tl.load(starts + owner + 1))
    rows = tl.where(is_piece, (end - begin) * static.group, 0)

    dk_acc = tl.full([static.block_k, static.block_h], 0.0, tl.float32)
    dv_acc = tl.full([static.block_k, static.block_v], 0.0, tl.float32)
    for start in tl.range(0, rows, static.block_q):
        place = start + tl.arange(0, static.block_q)
        is_row = place < rows
        query = tl.load(queries + begin + place // static.group, mask=is_row, other=0)
        own = query.to(tl.int64) * static.heads + kv_head * static.group + place % static.group
        q_tile = tl.load(q + own[:, None] * static.head_dim + h_cols, mask=is_row[:, None] & h_mask, other=0.0)
        x = tl.dot(k_tile, tl.trans(q_tile), input_precision=static.precision)
        row_lse = tl.load(lse + own, mask=is_row, other=0.0) * LOG2E
        seen = (token[:, None] <= (query % static.q_len + static.offset)[None, :]) & is_row[None, :]
        weights = tl.where(seen, tl.exp2(x * static.scale2 - row_lse[None, :]), 0.0)
        dout_tile = tl.load(
            dout + own[:, None] * static.v_head_dim + v_cols, mask=is_row[:, None] & v_mask, other=0.0
        )  # fmt: skip
        dv_acc = tl.dot(weights.to(dout_tile.dtype), dout_tile, dv_acc, input_precision=static.precision)
        dweights = tl.dot(v_tile, tl.trans(dout_tile), input_precision=static.precision)
        row_delta = tl.load(delta + own, mask=is_row, other=0.0)
        dlogits = weights * (dweights - row_delta[None, :])
        dk_acc = tl.dot(dlogits.to(q_tile.dtype), q_tile, dk_acc, input_precision=static.precision)

    sums = piece.to(tl.int64) * static.block_size + inside
    is_sum = (inside < tl.where(is_piece, static.block_size, 0))[:, None]
    tl.store(dk_sums + sums[:, None] * static.head_dim + h_cols, dk_acc, mask=is_sum & h_mask)
    tl.store(dv_sums + sums[:, None] * static.v_head_dim + v_cols, dv_acc, mask=is_sum & v_mask)


@triton.jit
def add_kernel(
    sums,
    pieces,
    begins,
    ends,
    gradient,
    scale: tl.constexpr,
    width: tl.constexpr,
    block_w: tl.constexpr,
    rows: tl.constexpr,
    static: tl.constexpr,
):
    """One program per ``rows`` keys of a block."""
    parts: tl.constexpr = static.block_size // rows
    owner = tl.program_id(0) // parts
    block = owner % static.blocks
    kv_head = owner // static.blocks % static.kv_heads
    row = (owner // (static.kv_heads * static.blocks)).to(tl.int64)
    inside = tl.program_id(0) % parts * rows + tl.arange(0, rows)
    token = tl.load(begins + block) + inside
    cols = tl.arange(0, block_w)[None, :]
    mask = (token < tl.load(ends + block))[:, None] & (cols < width)
    acc = tl.zeros([rows, block_w], tl.float32)
    for piece in tl.range(tl.load(pieces + owner), tl.load(pieces + owner + 1)):
        place = tl.cast(piece, tl.int64) * static.block_size + inside
        acc += tl.load(sums + place[:, None] * width + cols, mask=mask, other=0.0)
    keys = (row * static.kv_len + token) * static.kv_heads + kv_head
    tl.store(gradient + keys[:, None] * width + cols, (acc * scale).to(gradient.dtype.element_ty), mask=mask)
