"""The launch of sparse latent attention on Hopper, in Gluon.

Four warps of a program gather keys by their indices, sixteen bytes a thread and copy, into slots of shared memory. Two
groups of four warps own the same 64 heads, and each half of the output's columns, since an output of 64 rows and 512
columns is 256 registers a thread of one group. Each computes the logits of half of a tile's keys and passes its maxima,
then its weights, to the other through shared memory, so that no logit is computed twice (as FlashMLA's two groups do
with whole tiles in turn). What passes is guarded by barriers: ``full`` is completed by the threads whose copies have
come or by the group that wrote, ``empty`` by both groups when they have read a tile. The softmax is that of
FlashAttention-2 (arXiv 2307.08691, algorithm 1) in base 2.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from attn_tune.kernels.lang.gluon.names import new_barriers, synchronize, viewed
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.sparse_mla._triton.merge import merged
from attn_tune.kernels.sparse_mla.triton_hopper.config import BLOCK, GROUPS, PANEL, ROWS, WARPS, Config
from attn_tune.kernels.sparse_mla.triton_hopper.gathering import copy_queries, gather_tiles
from attn_tune.kernels.sparse_mla.triton_hopper.plan import plan_of
from attn_tune.kernels.sparse_mla.triton_hopper.walk import Barriers, Buffers, attend
from attn_tune.ops.sparse_mla.operands import Operands
from attn_tune.ops.sparse_mla.problem import Problem

_WARPS = gl.constexpr(WARPS)
_GROUPS = gl.constexpr(GROUPS)
_ROWS = gl.constexpr(ROWS)
_BLOCK = gl.constexpr(BLOCK)
_PANEL = gl.constexpr(PANEL)
_THREADS = gl.constexpr(32 * WARPS)
# Registers a thread: the groups need 128 for the output, 48 for logits and weights; a program has 64 K.
_MULTIPLYING, _GATHERING = gl.constexpr(216), gl.constexpr(72)


@dataclass(frozen=True)
class Layouts:
    """The layouts of tiles in registers: logits, weights as an operand, and a group's half of the output."""

    logits: Any
    weights: Any
    out: Any


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [B, T, N, V] in q's dtype and ``lse`` [B, T, N] in float32."""
    plan = plan_of(problem, config)
    rows = operands.q.shape[:3]
    is_whole = config.splits == 1
    parts = rows if is_whole else (config.splits, *rows)
    dtype = operands.q.dtype if is_whole else jnp.dtype(jnp.float32)
    out, lse = triton_call(
        gather_kernel,
        *operands,
        out_types=[
            jax.ShapeDtypeStruct((*parts, plan.v_head_dim), dtype),
            jax.ShapeDtypeStruct(parts, jnp.float32),
        ],
        grid=(rows[0] * rows[1] * plan.tiles * config.splits, 1, 1),
        constexprs={"plan": plan, "layouts": _layouts(plan.half)},
        num_warps=WARPS,
        name="sparse_mla_hopper",
    )
    return {"out": out, "lse": lse} if is_whole else merged(out, lse, operands.q.dtype)


def _layouts(half: int) -> Layouts:
    def product(width: int) -> gl.NVMMADistributedLayout:
        return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, width, 16])

    out = product(half)
    weights = gl.DotOperandLayout(operand_index=0, parent=out, k_width=2)
    return Layouts(logits=product(BLOCK), weights=weights, out=out)


@gluon.jit
def gather_kernel(q, kv, indices, sinks, out, lse, plan: gl.constexpr, layouts: gl.constexpr):
    """One program per query, share of its indices, and tile of heads."""
    dtype: gl.constexpr = q.dtype.element_ty
    STAGES: gl.constexpr = plan.stages
    SLOTS: gl.constexpr = STAGES * _GROUPS
    q_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_ROWS, plan.width], dtype)
    k_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_BLOCK, plan.width], dtype)
    half_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_BLOCK, plan.half], dtype)
    weights_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_ROWS, _BLOCK], dtype)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    keys = gl.allocate_shared_memory(dtype, [SLOTS, _BLOCK, plan.width], k_layout)
    halves: gl.constexpr = [SLOTS * _GROUPS, _BLOCK, plan.half]
    q_rest = None
    k_rest = None
    if plan.rest > 0:
        q_panel: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_ROWS, _PANEL], dtype)
        k_panel: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_BLOCK, _PANEL], dtype)
        q_rest = gl.allocate_shared_memory(dtype, [1, _ROWS, _PANEL], q_panel)
        k_rest = gl.allocate_shared_memory(dtype, [SLOTS, _BLOCK, _PANEL], k_panel)
    buffers = Buffers(
        gl.allocate_shared_memory(dtype, [1, _ROWS, plan.width], q_layout),
        q_rest,
        keys,
        k_rest,
        viewed(keys, halves, half_layout),
        gl.allocate_shared_memory(dtype, [_GROUPS, _ROWS, _BLOCK], weights_layout),
        gl.allocate_shared_memory(gl.float32, [_GROUPS, _ROWS], plain),
        gl.allocate_shared_memory(gl.float32, [_GROUPS, _ROWS], plain),
    )
    barriers = Barriers(
        new_barriers(SLOTS, _THREADS),
        new_barriers(STAGES, _GROUPS),
        new_barriers(_GROUPS, 1),
        new_barriers(_GROUPS, 1),
        new_barriers(_GROUPS, 1),
    )
    copy_queries(q, buffers, plan)
    fence_async_shared()
    synchronize()
    gl.warp_specialize(
        [
            (_attend_0, (indices, sinks, out, lse, buffers, barriers, plan, layouts)),
            (_attend_1, (indices, sinks, out, lse, buffers, barriers, plan, layouts)),
            (gather_tiles, (kv, indices, buffers, barriers, plan)),
        ],
        [_WARPS, _WARPS],
        [_MULTIPLYING, _GATHERING],
    )


@gluon.jit
def _attend_0(indices, sinks, out, lse, buffers, barriers, plan: gl.constexpr, layouts: gl.constexpr):
    attend(0, indices, sinks, out, lse, buffers, barriers, plan, layouts)


@gluon.jit
def _attend_1(indices, sinks, out, lse, buffers, barriers, plan: gl.constexpr, layouts: gl.constexpr):
    attend(1, indices, sinks, out, lse, buffers, barriers, plan, layouts)
