"""The block-sparse forward for Hopper, in Gluon: that of flash attention, over lists of tiles.

One program a multiprocessor takes tiles of 128 rows from a queue, those with most keys first. Slots, barriers and what
passes between warps are those of ``flash_attention/triton_hopper/forward.py``, whose parts are shared.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attn_tune.kernels.block_sparse_attention._lists.lists import Listed, Lists, listed_of
from attn_tune.kernels.block_sparse_attention.triton_hopper.limits import masked
from attn_tune.kernels.block_sparse_attention.triton_hopper.partitions import FACTS, attend, copy_tiles
from attn_tune.kernels.lang.gluon.attention.config import CONSUMERS, ROWS, WARPS, ForwardConfig
from attn_tune.kernels.lang.gluon.attention.launch import describe, layouts_of
from attn_tune.kernels.lang.gluon.attention.partitions import Barriers, Buffers
from attn_tune.kernels.lang.gluon.attention.plan import Plan, plan_of
from attn_tune.kernels.lang.gluon.attention.tiles import TILE_SLOTS, tile_info_size
from attn_tune.kernels.lang.gluon.names import new_barriers
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.ranges import key_ranges
from attn_tune.kernels.lang.triton.device.static import Static
from attn_tune.kernels.lang.triton.tiles import Tile
from attn_tune.ops.block_sparse_attention.operands import Operands
from attn_tune.ops.block_sparse_attention.problem import Problem

# Of 168 registers a thread that a block of 12 warps starts with, the warps that copy give most to those that multiply.
_MULTIPLYING, _COPYING = gl.constexpr(240), gl.constexpr(24)
_WARPS = gl.constexpr(WARPS)
_ROWS = gl.constexpr(ROWS)
_CONSUMERS = gl.constexpr(CONSUMERS)
_TILE_SLOTS = gl.constexpr(TILE_SLOTS)


def forward(problem: Problem, config: ForwardConfig, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [B, T, N, H] in q's dtype and ``lse`` [B, N, T] in float32."""
    static, plan, listed, lists = launch_of(problem, config, operands)
    if problem.has_lengths:
        operands = operands._replace(q_segments=None, kv_segments=None)
    out, lse, _ = triton_call(
        forward_kernel,
        operands.q,
        operands.k,
        operands.v,
        lists.tiles,
        facts_of(lists, static),
        key_ranges(operands.q_segments, operands.kv_segments, static),
        operands.kv_lengths,
        operands.q_segments,
        operands.kv_segments,
        out_types=[
            jax.ShapeDtypeStruct(operands.q.shape, operands.q.dtype),
            jax.ShapeDtypeStruct((problem.batch, problem.num_q_heads, problem.q_len), jnp.float32),
            jax.ShapeDtypeStruct((1,), jnp.int32),
        ],
        # The counter of the queue of tiles.
        zeroed=(False, False, True),
        grid=(plan.num_programs, 1, 1),
        constexprs={
            "plan": plan,
            "static": static,
            "listed": listed,
            "layouts": layouts_of(problem.head_dim, config.block_k),
        },
        num_warps=WARPS,
        name="block_sparse_attention_fwd_hopper",
    )
    return {"out": out, "lse": lse}


def launch_of(problem: Problem, config: ForwardConfig, operands: Operands) -> tuple[Static, Plan, Listed, Lists]:
    """The constants and the lists of a launch. Tiles beyond the lengths are in no list."""
    has_lengths, problem = problem.has_lengths, masked(problem)
    tile = Tile(block_q=config.block_q, block_k=config.block_k, num_warps=WARPS, num_stages=config.num_stages)
    static, listed, lists = listed_of(problem, tile, operands, longest_first=True)
    # The keys of a row without listed tiles are those beyond the end, which are masked.
    static = dataclasses.replace(static, ragged_k=True)
    plan = plan_of(problem, config, static)
    # The tile of keys that an edge crosses, if it is one only, is the first that is walked.
    keeps = problem.head_dim == 128 and problem.soft_cap is None
    plan = dataclasses.replace(plan, keeps_maximum=keeps, has_lengths=has_lengths)
    return static, plan, listed, lists


def facts_of(lists: Lists, static: Static) -> Int[Array, "_b _n q_blocks 4"]:
    """Of each tile of rows, in the order of the queue: its number, its listed tiles, the first to walk, and 0.

    The first of an empty list are keys beyond the end.
    """
    assert lists.order is not None
    seen = lists.counts[..., 1]
    last = jnp.take_along_axis(lists.tiles, jnp.maximum(seen - 1, 0)[..., None], axis=-1)[..., 0]
    first = jnp.where(seen > 0, last, static.kv_blocks)
    facts = jnp.stack([seen, first, jnp.zeros_like(seen)], axis=-1)
    assert facts.shape[-1] == FACTS - 1
    ordered = jnp.take_along_axis(facts, lists.order[..., None], axis=2)
    return jnp.concatenate([lists.order[..., None], ordered], axis=-1)


@gluon.jit
def forward_kernel(
    q,
    k,
    v,
    tiles,
    facts,
    ranges,
    lengths,
    q_segments,
    kv_segments,
    out,
    lse,
    counter,
    plan: gl.constexpr,
    static: gl.constexpr,
    listed: gl.constexpr,
    layouts: gl.constexpr,
):
    """One program a multiprocessor."""
    STAGES: gl.constexpr = plan.stages
    Q_SLOTS: gl.constexpr = _CONSUMERS * plan.q_slots
    dtype: gl.constexpr = q.dtype.element_ty
    q_shape: gl.constexpr = [1, _ROWS, static.head_dim]
    k_shape: gl.constexpr = [1, static.block_k, static.head_dim]
    q_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(q_shape, dtype)
    k_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(k_shape, dtype)
    q_desc = describe(q, static.q_len, static.num_q_heads, q_shape, q_layout, plan, static)
    k_desc = describe(k, static.kv_len, static.num_kv_heads, k_shape, k_layout, plan, static)
    v_desc = describe(v, static.kv_len, static.num_kv_heads, k_shape, k_layout, plan, static)
    out_desc = describe(out, static.q_len, static.num_q_heads, q_shape, q_layout, plan, static)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    ids: gl.constexpr = static.block_k if static.has_segments else 1
    buffers = Buffers(
        gl.allocate_shared_memory(dtype, [Q_SLOTS, 1, _ROWS, static.head_dim], q_layout),
        gl.allocate_shared_memory(dtype, [STAGES, 1, static.block_k, static.head_dim], k_layout),
        gl.allocate_shared_memory(dtype, [STAGES, 1, static.block_k, static.head_dim], k_layout),
        gl.allocate_shared_memory(dtype, [_CONSUMERS, 1, _ROWS, static.head_dim], q_layout),
        gl.allocate_shared_memory(gl.int32, [_TILE_SLOTS * tile_info_size(static), 1], plain),
        gl.allocate_shared_memory(gl.int32, [_CONSUMERS, ids], plain),
    )
    barriers = Barriers(
        new_barriers(Q_SLOTS, 1),
        new_barriers(Q_SLOTS, 1),
        new_barriers(STAGES, 1),
        new_barriers(STAGES, _CONSUMERS),
        new_barriers(STAGES, 1),
        new_barriers(STAGES, _CONSUMERS),
        new_barriers(_CONSUMERS, 1),
        new_barriers(_TILE_SLOTS, 1),
        new_barriers(_TILE_SLOTS, _CONSUMERS),
    )
    pointers = (tiles, q_segments, kv_segments, lse)
    gl.warp_specialize(
        [
            (_attend_0, (out_desc, pointers, buffers, barriers, plan, static, listed, layouts)),
            (_attend_1, (out_desc, pointers, buffers, barriers, plan, static, listed, layouts)),
            (
                copy_tiles,
                (
                    (q_desc, k_desc, v_desc),
                    (tiles, facts, ranges, lengths, counter),
                    buffers,
                    barriers,
                    plan,
                    static,
                    listed,
                ),
            ),
        ],
        [_WARPS, 1],
        [_MULTIPLYING, _COPYING],
    )


@gluon.jit
def _attend_0(
    out_desc,
    pointers,
    buffers,
    barriers,
    plan: gl.constexpr,
    static: gl.constexpr,
    listed: gl.constexpr,
    layouts: gl.constexpr,
):
    attend(0, out_desc, pointers, buffers, barriers, plan, static, listed, layouts)


@gluon.jit
def _attend_1(
    out_desc,
    pointers,
    buffers,
    barriers,
    plan: gl.constexpr,
    static: gl.constexpr,
    listed: gl.constexpr,
    layouts: gl.constexpr,
):
    attend(1, out_desc, pointers, buffers, barriers, plan, static, listed, layouts)
