"""The launch that differentiates chunks on Hopper, once the states on both sides and their gradients are known.

The formulas are those of ``gated_delta_rule.triton.gradients``; one launch does the work of three there. A program
takes chunks of a key head in turn, each with all its value heads. One warp copies what they need to shared memory, some
parts ahead. Two groups of four warps multiply by states (``chunk_gradients``), and one group finds the gradients of
pairs of tokens (``chunk_pairs``).
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from attn_tune.kernels.gated_delta_rule._triton.prepare import Prepared
from attn_tune.kernels.gated_delta_rule._triton.walked import Kept, Walked
from attn_tune.kernels.gated_delta_rule.triton_hopper.chunk_gradients import differentiate_chunks
from attn_tune.kernels.gated_delta_rule.triton_hopper.chunk_pairs import pair_chunks
from attn_tune.kernels.gated_delta_rule.triton_hopper.chunk_parts import copy_parts, layouts_of, new_buffers
from attn_tune.kernels.lang.gluon.chunks import CHUNK, PART, WARPS
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.static import Static
from attn_tune.ops.gated_delta_rule.operands import BackwardInputs

_CHUNK = gl.constexpr(CHUNK)
_PART = gl.constexpr(PART)
_WARPS = gl.constexpr(WARPS)
# Registers a thread: of the second group of channels, of that of pairs, and of the warp that copies.
_MULTIPLYING, _PAIRING, _COPYING = gl.constexpr(160), gl.constexpr(168), gl.constexpr(24)


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientPlan:
    """Constants: Triton's cache is keyed by this value's text.

    Attributes:
      stages: parts in shared memory: 32 columns of the values of a chunk and head, and of the states around it.
      programs: of the launch.
      tokens: of all sequences.
    """

    stages: int
    programs: int
    tokens: int


def differentiate(
    inputs: BackwardInputs, prepared: Prepared, kept: Kept, walked: Walked, static: Static, plan: GradientPlan
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """``dq``, ``dk``, ``dg`` and ``dbeta``."""
    o = inputs.operands
    numbers = jax.ShapeDtypeStruct(o.v.shape[:3], jnp.float32)
    found = triton_call(
        gradients_kernel,
        o.q,
        o.k,
        o.v,
        o.g,
        o.initial_state,
        inputs.dstate,
        places_of(o.cu_seqlens, static),
        inputs.dout,
        *kept,
        walked.state_gradients,
        walked.update_gradients,
        prepared.decays,
        out_types=[
            jax.ShapeDtypeStruct(o.q.shape, o.q.dtype),
            jax.ShapeDtypeStruct(o.k.shape, o.k.dtype),
            numbers,
            numbers,
        ],
        grid=(plan.programs, 1, 1),
        constexprs={"static": static, "plan": plan, "layouts": layouts_of(static.width)},
        num_warps=WARPS,
        name="gated_delta_rule_bwd_gradients_hopper",
    )
    dq, dk, dg, dbeta = found
    return dq, dk, dg, dbeta


def places_of(cu_seqlens: jax.Array | None, static: Static) -> jax.Array:
    """Of each place of a chunk, int32 ``[slots, 4]``: its sequence, first token, the sequence's end and its beginning.

    The sequence is -1 where tokens belong to none; a place without tokens begins at the end or behind it.
    """
    slots = np.arange(static.slots, dtype=np.int32)
    if cu_seqlens is None:
        chunks = static.slots // static.batch
        sequence, begin = slots // chunks, slots // chunks * static.length
        start = begin + slots % chunks * CHUNK
        return jnp.asarray(np.stack([sequence, start, begin + static.length, begin], axis=1))
    starts = cu_seqlens.astype(jnp.int32)
    before = starts // CHUNK + jnp.arange(1, static.batch + 2, dtype=jnp.int32)
    part = jnp.searchsorted(before, slots, side="right", method="scan_unrolled").astype(jnp.int32)
    edges = jnp.concatenate([jnp.zeros(1, jnp.int32), starts, jnp.full(1, static.length, jnp.int32)])
    begin, end = edges[part], edges[part + 1]
    start = begin + (slots - begin // CHUNK - part) * CHUNK
    sequence = jnp.where(part <= static.batch, part - 1, -1)
    return jnp.stack([sequence, start, end, begin], axis=1)


@gluon.jit
def gradients_kernel(
    q,
    k,
    v,
    g,
    initial_state,
    dstate,
    places,
    dout,
    states,
    updates,
    rests,
    state_gradients,
    update_gradients,
    decays,
    dq,
    dk,
    dg,
    dbeta,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """``plan.programs`` programs share the chunks of all key heads; those of one chunk are neighbours."""
    dtype: gl.constexpr = k.dtype.element_ty
    HALF: gl.constexpr = static.width // 2
    KEYS: gl.constexpr = static.key_heads * static.width
    VALUES: gl.constexpr = static.heads * static.v_width
    STATES: gl.constexpr = static.slots * static.heads * static.v_width
    half: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_CHUNK, HALF], dtype)
    tile: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_CHUNK, _PART], dtype)
    part: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_PART, HALF], dtype)
    q_desc = tma.make_tensor_descriptor(q, [plan.tokens, KEYS], [KEYS, 1], [_CHUNK, HALF], half)
    k_desc = tma.make_tensor_descriptor(k, [plan.tokens, KEYS], [KEYS, 1], [_CHUNK, HALF], half)
    dq_desc = tma.make_tensor_descriptor(dq, [plan.tokens, KEYS], [KEYS, 1], [_CHUNK, HALF], half)
    dk_desc = tma.make_tensor_descriptor(dk, [plan.tokens, KEYS], [KEYS, 1], [_CHUNK, HALF], half)
    v_desc = tma.make_tensor_descriptor(v, [plan.tokens, VALUES], [VALUES, 1], [_CHUNK, _PART], tile)
    dout_desc = tma.make_tensor_descriptor(dout, [plan.tokens, VALUES], [VALUES, 1], [_CHUNK, _PART], tile)
    u_desc = tma.make_tensor_descriptor(updates, [plan.tokens, VALUES], [VALUES, 1], [_CHUNK, _PART], tile)
    rest_desc = tma.make_tensor_descriptor(rests, [plan.tokens, VALUES], [VALUES, 1], [_CHUNK, _PART], tile)
    y_desc = tma.make_tensor_descriptor(update_gradients, [plan.tokens, VALUES], [VALUES, 1], [_CHUNK, _PART], tile)
    H: gl.constexpr = static.width
    state_desc = tma.make_tensor_descriptor(states, [STATES, H], [H, 1], [_PART, HALF], part)
    later_desc = tma.make_tensor_descriptor(state_gradients, [STATES, H], [H, 1], [_PART, HALF], part)
    buffers = new_buffers(dtype, static, plan)
    copied = (q_desc, k_desc, v_desc, dout_desc, u_desc, rest_desc, y_desc, state_desc, later_desc)
    arrays = (g, initial_state, dstate, decays, dq, dk, dg, dbeta)
    stored = (dq_desc, dk_desc)
    gl.warp_specialize(
        [
            (_differentiate_0, (places, arrays, stored, buffers, static, plan, layouts)),
            (_differentiate_1, (places, arrays, stored, buffers, static, plan, layouts)),
            (pair_chunks, (places, arrays, (states, state_gradients), buffers, static, plan, layouts)),
            (copy_parts, (places, copied, buffers, static, plan)),
        ],
        [_WARPS, _WARPS, 1],
        [_MULTIPLYING, _PAIRING, _COPYING],
    )


@gluon.jit
def _differentiate_0(places, arrays, stored, buffers, static: gl.constexpr, plan: gl.constexpr, layouts: gl.constexpr):
    differentiate_chunks(0, places, arrays, stored, buffers, static, plan, layouts)


@gluon.jit
def _differentiate_1(places, arrays, stored, buffers, static: gl.constexpr, plan: gl.constexpr, layouts: gl.constexpr):
    differentiate_chunks(1, places, arrays, stored, buffers, static, plan, layouts)
