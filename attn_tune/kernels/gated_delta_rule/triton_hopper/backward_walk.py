"""The launch of the backward that walks the chunks of each head on Hopper, in both directions, in Triton's Gluon."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

import jax
import jax.numpy as jnp
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from attn_tune.kernels.gated_delta_rule._triton.prepare import Prepared
from attn_tune.kernels.gated_delta_rule._triton.walked import Kept, Walked
from attn_tune.kernels.gated_delta_rule.triton_hopper.backward_steps import (
    copy_chunks,
    new_buffers,
    store_gradient,
    walk_backwards,
    walk_forwards,
)
from attn_tune.kernels.lang.gluon.chunks import CHUNK, COLUMNS, NUMBERS, WARPS, Plan
from attn_tune.kernels.lang.gluon.chunks.numbers import COPIED
from attn_tune.kernels.lang.gluon.chunks.places import walk_at
from attn_tune.kernels.lang.gluon.chunks.states import layouts_of, load_start, store_nothing
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.static import Static
from attn_tune.ops.gated_delta_rule.operands import BackwardInputs

_CHUNK = gl.constexpr(CHUNK)
_COLUMNS = gl.constexpr(COLUMNS)
_NUMBERS = gl.constexpr(NUMBERS)
# Registers a thread of the warp that copies.
_COPYING = gl.constexpr(24)


def walk(inputs: BackwardInputs, prepared: Prepared, static: Static, plan: Plan) -> tuple[Kept, Walked]:
    """Walks all chunks forwards and backwards at one time: neither walk fills a device, or needs the other.

    States and their gradients are stored turned, ``[slots, N, V, H]``.

    Args:
      prepared: whole squares, and inverses of two parts; no carriers.
      static: tiles have the columns of one group of warps, and sequences are not cut.
      plan: of one group.
    """
    o = inputs.operands
    tokens = jax.ShapeDtypeStruct(o.v.shape, o.v.dtype)
    states = jax.ShapeDtypeStruct((static.slots, static.heads, static.v_width, static.width), o.q.dtype)
    found = triton_call(
        walks_kernel,
        o.q,
        o.k,
        o.v,
        o.initial_state,
        inputs.dout,
        inputs.dstate,
        o.cu_seqlens,
        prepared.solved,
        prepared.mixed,
        prepared.decays,
        out_types=[
            states,
            tokens,
            tokens,
            states,
            tokens,
            tokens,
            jax.ShapeDtypeStruct((static.batch, static.heads, static.width, static.v_width), jnp.float32),
        ],
        grid=(static.tiles * static.heads * (static.parts + static.batch), 1, 1),
        constexprs={"static": static, "plan": plan, "layouts": layouts_of(static.width)},
        num_warps=WARPS,
        name="gated_delta_rule_bwd_walks_hopper",
    )
    return Kept(*found[:3]), Walked(*found[3:])


@gluon.jit
def walks_kernel(
    q,
    k,
    v,
    initial_state,
    dout,
    dstate,
    cu_seqlens,
    solved,
    mixed,
    numbers,
    states,
    updates,
    rests,
    state_gradients,
    update_gradients,
    dv,
    dinitial_state,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """One program per tile of columns, head and sequence, of each direction; tokens of no sequence get zeros.

    Programs that walk backwards, which takes longer, come first.
    """
    tile = gl.program_id(0) % static.tiles
    head = gl.program_id(0) // static.tiles % static.heads
    part = gl.program_id(0) // (static.tiles * static.heads)
    is_back = part < static.parts
    if static.ragged:
        # That of tokens before the first sequence has no walk forwards.
        part = gl.where(is_back, part, part - static.parts + 1)
    else:
        part = gl.where(is_back, part, part - static.parts)
    # A sequence is its only segment, and all columns are of values. Plain constants could not be bound to a variable.
    walk = walk_at(cu_seqlens, part, part * 0, head, tile, tile >= 0, static)
    copied = (k, q, gl.where(is_back, dout, v), solved, mixed, numbers)
    stored = (
        gl.where(is_back, state_gradients, states),
        gl.where(is_back, update_gradients, updates),
        gl.where(is_back, dv, rests),
    )
    descriptors = _descriptors_of(copied, stored, static, plan)
    buffers = new_buffers(k.dtype.element_ty, static, plan)
    arrays = (initial_state, dstate, updates, rests, update_gradients, dv, dinitial_state)
    gl.warp_specialize(
        [
            (_multiply, (is_back, walk, arrays, descriptors, buffers, static, plan, layouts)),
            (copy_chunks, (is_back, walk, descriptors, buffers, static, plan)),
        ],
        [1],
        [_COPYING],
    )


@gluon.jit
def _multiply(
    is_back, walk, arrays, descriptors, buffers, static: gl.constexpr, plan: gl.constexpr, layouts: gl.constexpr
):
    """Walks the chunks of a program in its direction."""
    initial_state, dstate, updates, rests, update_gradients, dv, dinitial_state = arrays
    index = walk.sequence * static.heads + walk.head
    if walk.sequence < 0:
        store_nothing(0, walk, dv, static, plan)
    elif is_back:
        held = load_start(0, walk, dstate, static, plan, layouts, index)
        held = walk_backwards(walk, held, update_gradients, dv, descriptors, buffers, static, plan, layouts)
        store_gradient(walk, held, dinitial_state, static, layouts)
    else:
        held = load_start(0, walk, initial_state, static, plan, layouts, index)
        walk_forwards(walk, held, updates, rests, descriptors, buffers, static, plan, layouts)


@gluon.jit
def _descriptors_of(copied, stored, static: gl.constexpr, plan: gl.constexpr):
    """Descriptors of all that is copied, in the order of ``copy_chunks``, and of all that is stored."""
    k, q, values, solved, mixed, numbers = copied
    states, ones, others = stored
    dtype: gl.constexpr = k.dtype.element_ty
    H: gl.constexpr = static.width
    rows: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_CHUNK, H], dtype)
    square: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_CHUNK, _CHUNK], dtype)
    pair: gl.constexpr = gl.NVMMASharedLayout.get_default_for([2 * _CHUNK, _CHUNK], dtype)
    KEYS: gl.constexpr = static.key_heads * H
    VALUES: gl.constexpr = static.heads * static.v_width
    SQUARES: gl.constexpr = plan.places * _CHUNK
    STATES: gl.constexpr = plan.places * static.v_width
    ALL: gl.constexpr = _NUMBERS * _CHUNK
    k_desc = tma.make_tensor_descriptor(k, [plan.tokens, KEYS], [KEYS, 1], [_CHUNK, H], rows)
    q_desc = tma.make_tensor_descriptor(q, [plan.tokens, KEYS], [KEYS, 1], [_CHUNK, H], rows)
    values_desc = tma.make_tensor_descriptor(values, [plan.tokens, VALUES], [VALUES, 1], [_CHUNK, _COLUMNS], square)
    solved_desc = tma.make_tensor_descriptor(solved, [2 * SQUARES, _CHUNK], [_CHUNK, 1], [2 * _CHUNK, _CHUNK], pair)
    mixed_desc = tma.make_tensor_descriptor(mixed, [SQUARES, _CHUNK], [_CHUNK, 1], [_CHUNK, _CHUNK], square)
    numbers_desc = tma.make_tensor_descriptor(numbers, [plan.places, ALL], [ALL, 1], [1, ALL], COPIED)
    states_desc = tma.make_tensor_descriptor(states, [STATES, H], [H, 1], [_COLUMNS, H], rows)
    ones_desc = tma.make_tensor_descriptor(ones, [plan.tokens, VALUES], [VALUES, 1], [_CHUNK, _COLUMNS], square)
    others_desc = tma.make_tensor_descriptor(others, [plan.tokens, VALUES], [VALUES, 1], [_CHUNK, _COLUMNS], square)
    return (
        k_desc,
        q_desc,
        values_desc,
        solved_desc,
        mixed_desc,
        numbers_desc,
        states_desc,
        ones_desc,
        others_desc,
    )
