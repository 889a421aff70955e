"""The launch that walks the chunks of each head on Hopper, in Triton's Gluon, and makes the outputs."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

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
from attn_tune.kernels.lang.triton.chunks.static import Static
from attn_tune.ops.gated_delta_rule.operands import Operands


def scan(
    operands: Operands, prepared: Prepared, starts: jax.Array | None, static: Static, plan: Plan
) -> tuple[jax.Array, jax.Array]:
    """The outputs of all tokens and the final states.

    Args:
      starts: the states at the start of each segment ``[B, segments, N, H, V]``, or ``[B, N, H, V]`` of sequences that
        are not cut; None where these are zero.
    """
    o = operands
    out, state = triton_call(
        scan_kernel,
        o.q,
        o.k,
        o.v,
        starts,
        o.cu_seqlens,
        prepared.solved,
        prepared.mixed,
        prepared.decays,
        out_types=[
            jax.ShapeDtypeStruct(o.v.shape, o.v.dtype),
            jax.ShapeDtypeStruct((static.batch, static.heads, static.width, static.v_width), jnp.float32),
        ],
        grid=(static.tiles * static.heads * static.parts * static.segments, 1, 1),
        constexprs={"static": static, "plan": plan, "layouts": layouts_of(static.width)},
        num_warps=WARPS,
        name="gated_delta_rule_scan_hopper",
    )
    return out, state


@gluon.jit
def scan_kernel(
    q,
    k,
    v,
    starts,
    cu_seqlens,
    solved,
    mixed,
    numbers,
    out,
    state,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """One program per tile of columns, head and segment of a sequence; tokens of no sequence get zeros."""
    walk = walk_of(cu_seqlens, static.tiles, static.segments, static)
    descriptors = descriptors_of(q, k, v, solved, mixed, numbers, out, static, plan)
    buffers = new_buffers(k.dtype.element_ty, static, plan)
    run(walk, (starts, out, state), descriptors, buffers, static, plan, layouts)
