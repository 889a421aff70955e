"""The forward for Hopper: FlashAttention-3 (arXiv 2407.08608) in Gluon.

One program a multiprocessor goes through tiles of 128 rows. One of its warps copies by descriptor (TMA), two groups of
four warps own 64 rows each and do everything else. They wait for tiles, never for each other, so that one's softmax
runs beside the other's products. All that passes between them is in slots of shared memory (``partitions.Buffers``),
each guarded by two barriers (``partitions.Barriers``)::

    copying warp (copy_tiles)      slots                          group 0 and group 1 (attend)
    -------------------------      ---------------------------    -----------------------------------
    publish_tile_info       --->   info   [2 tiles]        --->   receive_tile_info     both read it
    _load_query_tile  (TMA) --->   q      [2 x q_slots]    --->   receive_queries       each its half
    _load_kv_tile     (TMA) --->   k      [stages]         --->   q.k   (wgmma)         both read it
                            --->   v      [stages]         --->   p.v   (wgmma)         both read it
                                   out    [2], or q's      <---   _store_output         each its own
                                   ids    [2, block_k]     <-->   segments of the keys  each its own

    barrier             arrives                                 waits                        arrivals
    tile_full[2]        copying warp, tile info is written      both groups                  1
    tile_empty[2]       each group, has read it                 copying warp                 2
    q_full[2*q_slots]   TMA, by bytes                           the group of that half       1
    q_empty[2*q_slots]  that group: registers or last product   copying warp                 1
    k_full[stages]      TMA, by bytes                           both groups                  1
    k_empty[stages]     each group, its q.k is done             copying warp                 2
    v_full[stages]      TMA, by bytes                           both groups                  1
    v_empty[stages]     each group, its p.v is done             copying warp                 2
    turn[2]             the other group has started a step      this group, with ping_pong   1

Slot and phase of step ``n`` over tiles of keys are ``n % stages`` and ``n // stages % 2`` (``steps.slot_of``). A wait
for an empty slot starts with the phase before, so that the first pass over the slots does not wait.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

import dataclasses

import jax
import jax.numpy as jnp
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from attn_tune.kernels.flash_attention.triton_hopper.schedule import is_dynamic, schedule
from attn_tune.kernels.lang.gluon.attention.config import (
    CONSUMERS,
    ROWS,
    WARPS,
    ForwardConfig,
)
from attn_tune.kernels.lang.gluon.attention.launch import describe, layouts_of
from attn_tune.kernels.lang.gluon.attention.partitions import (
    Barriers,
    Buffers,
    attend,
    copy_tiles,
)
from attn_tune.kernels.lang.gluon.attention.plan import num_programs, plan_of
from attn_tune.kernels.lang.gluon.attention.tiles import TILE_SLOTS, tile_info_size
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.ranges import key_ranges
from attn_tune.kernels.lang.triton.device.static import static_of
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem

# Of 168 registers a thread that a block of 12 warps starts with, the warps that copy give most to those that multiply.
MULTIPLYING_REGISTERS, COPYING_REGISTERS = 240, 24
_WARPS = gl.constexpr(WARPS)
_ROWS = gl.constexpr(ROWS)
_CONSUMERS = gl.constexpr(CONSUMERS)
_TILE_SLOTS = gl.constexpr(TILE_SLOTS)
_MULTIPLYING = gl.constexpr(MULTIPLYING_REGISTERS)
_COPYING = gl.constexpr(COPYING_REGISTERS)


def forward(problem: Problem, config: ForwardConfig, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [B, T, N, H] in q's dtype and ``lse`` [B, N, T] in float32."""
    masked = problem
    if problem.has_lengths:
        # They say all that the segments say, and need no comparing.
        masked = dataclasses.replace(problem, has_segments=False, has_lengths=False)
        operands = operands._replace(q_segments=None, kv_segments=None)
    static = static_of(masked, config, ranges=True)
    tiles, width = None, 0
    if not is_dynamic(problem, jax.device_count()):
        table = schedule(problem, config)
        tiles, width = jnp.asarray(table), table.shape[1]
    plan = plan_of(problem, config, static, width)
    out, lse, _ = triton_call(
        forward_kernel,
        operands.q,
        operands.k,
        operands.v,
        tiles,
        key_ranges(operands.q_segments, operands.kv_segments, static),
        operands.kv_lengths,
        operands.q_segments,
        operands.kv_segments,
        operands.sinks,
        operands.dropout,
        out_types=[
            jax.ShapeDtypeStruct(operands.q.shape, operands.q.dtype),
            jax.ShapeDtypeStruct((problem.batch, problem.num_q_heads, problem.q_len), jnp.float32),
            jax.ShapeDtypeStruct((1,), jnp.int32),
        ],
        # The counter of the queue of tiles.
        zeroed=(False, False, plan.dynamic),
        grid=(num_programs(problem, config), 1, 1),
        constexprs={
            "plan": plan,
            "static": static,
            "layouts": layouts_of(problem.head_dim, config.block_k),
        },
        num_warps=WARPS,
        name="flash_attention_fwd_hopper",
    )
    return {"out": out, "lse": lse}


@gluon.jit
def forward_kernel(
    q,
    k,
    v,
    schedule,
    ranges,
    lengths,
    q_segments,
    kv_segments,
    sinks,
    dropout,
    out,
    lse,
    counter,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """One program a multiprocessor."""
    STAGES: gl.constexpr = plan.stages
    dtype: gl.constexpr = q.dtype.element_ty
    q_shape: gl.constexpr = [1, _ROWS, static.head_dim]
    k_shape: gl.constexpr = [1, static.block_k, static.head_dim]
    q_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(q_shape, dtype)
    k_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(k_shape, dtype)
    q_desc = describe(q, static.q_len, static.num_q_heads, q_shape, q_layout, plan, static)
    k_desc = describe(k, static.kv_len, static.num_kv_heads, k_shape, k_layout, plan, static)
    v_desc = describe(v, static.kv_len, static.num_kv_heads, k_shape, k_layout, plan, static)
    out_desc = describe(out, static.q_len, static.num_q_heads, q_shape, q_layout, plan, static)
    Q_SLOTS: gl.constexpr = _CONSUMERS * plan.q_slots
    q_buffer = gl.allocate_shared_memory(dtype, [Q_SLOTS, 1, _ROWS, static.head_dim], q_layout)
    out_buffer = q_buffer
    if plan.own_buffer:
        out_buffer = gl.allocate_shared_memory(dtype, [_CONSUMERS, 1, _ROWS, static.head_dim], q_layout)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    ids: gl.constexpr = static.block_k if static.has_segments else 1
    buffers = Buffers(
        q_buffer,
        gl.allocate_shared_memory(dtype, [STAGES, 1, static.block_k, static.head_dim], k_layout),
        gl.allocate_shared_memory(dtype, [STAGES, 1, static.block_k, static.head_dim], k_layout),
        out_buffer,
        gl.allocate_shared_memory(gl.int32, [_TILE_SLOTS * tile_info_size(static), 1], plain),
        gl.allocate_shared_memory(gl.int32, [_CONSUMERS, ids], plain),
    )
    barriers = Barriers(
        mbarrier.allocate_mbarrier(batch=Q_SLOTS),
        mbarrier.allocate_mbarrier(batch=Q_SLOTS),
        mbarrier.allocate_mbarrier(batch=STAGES),
        mbarrier.allocate_mbarrier(batch=STAGES),
        mbarrier.allocate_mbarrier(batch=STAGES),
        mbarrier.allocate_mbarrier(batch=STAGES),
        mbarrier.allocate_mbarrier(batch=_CONSUMERS),
        mbarrier.allocate_mbarrier(batch=_TILE_SLOTS),
        mbarrier.allocate_mbarrier(batch=_TILE_SLOTS),
    )
    for i in gl.static_range(_TILE_SLOTS):
        mbarrier.init(barriers.tile_full.index(i), count=1)
        mbarrier.init(barriers.tile_empty.index(i), count=_CONSUMERS)
    for i in gl.static_range(Q_SLOTS):
        mbarrier.init(barriers.q_full.index(i), count=1)
        mbarrier.init(barriers.q_empty.index(i), count=1)
    for i in gl.static_range(_CONSUMERS):
        mbarrier.init(barriers.turn.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(barriers.k_full.index(i), count=1)
        mbarrier.init(barriers.k_empty.index(i), count=_CONSUMERS)
        mbarrier.init(barriers.v_full.index(i), count=1)
        mbarrier.init(barriers.v_empty.index(i), count=_CONSUMERS)
    pointers = (q_segments, kv_segments, sinks, dropout, lse)
    gl.warp_specialize(
        [
            (_attend_0, (out_desc, pointers, buffers, barriers, plan, static, layouts)),
            (_attend_1, (out_desc, pointers, buffers, barriers, plan, static, layouts)),
            (
                copy_tiles,
                (
                    (q_desc, k_desc, v_desc),
                    (schedule, counter, ranges, lengths),
                    buffers,
                    barriers,
                    plan,
                    static,
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
    layouts: gl.constexpr,
):
    attend(0, out_desc, pointers, buffers, barriers, plan, static, layouts)


@gluon.jit
def _attend_1(
    out_desc,
    pointers,
    buffers,
    barriers,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    attend(1, out_desc, pointers, buffers, barriers, plan, static, layouts)
