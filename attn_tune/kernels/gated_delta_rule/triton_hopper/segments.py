"""The states at the start of each segment of a sequence, walked on Hopper (``lang.triton.chunks.segments``)."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

import dataclasses

import jax
import jax.numpy as jnp
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attn_tune.kernels.gated_delta_rule._triton.prepare import Prepared
from attn_tune.kernels.gated_delta_rule.triton_hopper.launch import descriptors_of, run
from attn_tune.kernels.gated_delta_rule.triton_hopper.walk import new_buffers
from attn_tune.kernels.lang.gluon.chunks import WARPS, Plan
from attn_tune.kernels.lang.gluon.chunks.places import walk_of
from attn_tune.kernels.lang.gluon.chunks.states import layouts_of
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.segments import starts_of
from attn_tune.kernels.lang.triton.chunks.static import Static
from attn_tune.ops.gated_delta_rule.operands import Operands

# Columns of a program that applies transitions in turn: few, as a sequence has few such programs.
_START_COLUMNS = 16


def segment_starts(operands: Operands, prepared: Prepared, static: Static, plan: Plan) -> jax.Array:
    """The float32 state at the start of each segment ``[B, segments, N, H, V]``."""
    o = operands
    places = (static.batch, static.segments, static.heads, static.width)
    tiles = static.tiles + static.width // static.block_v
    matrices, ends = triton_call(
        transitions_kernel,
        o.k,
        o.v,
        o.cu_seqlens,
        prepared.solved,
        prepared.decays,
        out_types=[
            jax.ShapeDtypeStruct((*places, static.width), jnp.float32),
            jax.ShapeDtypeStruct((*places, static.v_width), jnp.float32),
        ],
        grid=(tiles * static.heads * (static.segments - 1) * static.batch, 1, 1),
        constexprs={
            "static": static,
            "plan": dataclasses.replace(plan, has_outputs=False),
            "layouts": layouts_of(static.width),
        },
        num_warps=WARPS,
        # Two programs fit a multiprocessor; half of these threads, of the warp that copies, give theirs away.
        maxnreg=128 if plan.groups == 1 else None,
        name="gated_delta_rule_transitions_hopper",
    )
    narrow = dataclasses.replace(static, block_v=_START_COLUMNS, tiles=static.v_width // _START_COLUMNS)
    return starts_of("gated_delta_rule", o.initial_state, matrices, ends, narrow)


@gluon.jit
def transitions_kernel(
    k,
    v,
    cu_seqlens,
    solved,
    numbers,
    matrices,
    ends,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """One program per tile of columns of ``Z`` or of ``M``, head and segment of a sequence but the last one."""
    TILES: gl.constexpr = static.tiles + static.width // static.block_v
    walk = walk_of(cu_seqlens, TILES, static.segments - 1, static)
    descriptors = descriptors_of(k, k, v, solved, solved, numbers, v, static, plan)
    buffers = new_buffers(k.dtype.element_ty, static, plan)
    run(walk, (None, matrices, ends), descriptors, buffers, static, plan, layouts)
