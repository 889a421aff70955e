"""The launch of sparse latent attention on Hopper, in Gluon.

Four warps of a program gather keys by their indices, sixteen bytes a thread and copy, into slots of shared memory. Two
groups of four warps attend to them in turns (``lang.gluon.latents``).
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

import jax
import jax.numpy as jnp
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from attn_tune.kernels.lang.gluon.latents import WARPS
from attn_tune.kernels.lang.gluon.latents.slots import layouts_of, new_buffers, new_signals
from attn_tune.kernels.lang.gluon.names import synchronize
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.sparse_mla._triton.merge import merged
from attn_tune.kernels.sparse_mla.triton_hopper.config import Config
from attn_tune.kernels.sparse_mla.triton_hopper.gathering import copy_queries, gather_tiles
from attn_tune.kernels.sparse_mla.triton_hopper.plan import plan_of
from attn_tune.kernels.sparse_mla.triton_hopper.walk import attend
from attn_tune.ops.sparse_mla.operands import Operands
from attn_tune.ops.sparse_mla.problem import Problem

_WARPS = gl.constexpr(WARPS)
_THREADS = gl.constexpr(32 * WARPS)
# Registers a thread: the groups need 128 for the output, 48 for logits and weights; a program has 64 K.
_MULTIPLYING, _GATHERING = gl.constexpr(216), gl.constexpr(72)


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
        constexprs={"plan": plan, "layouts": layouts_of(plan.half)},
        num_warps=WARPS,
        name="sparse_mla_hopper",
    )
    return {"out": out, "lse": lse} if is_whole else merged(out, lse, operands.q.dtype)


@gluon.jit
def gather_kernel(q, kv, indices, sinks, out, lse, plan: gl.constexpr, layouts: gl.constexpr):
    """One program per query, share of its indices, and tile of heads."""
    buffers = new_buffers(q.dtype.element_ty, plan)
    barriers = new_signals(_THREADS, plan)
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
