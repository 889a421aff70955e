"""The two walks of the backward: forwards for the states, which are kept, and backwards for their gradients.

With the names of ``prepare.py``, ``P`` the products of queries and keys, ``Q`` and ``K`` the decayed queries and keys,
``F`` the decays of a whole chunk and ``S'`` the state after it, the gradients of updates and of the state before are::

    du = P^T dout + K dS'
    dS = F dS' + Q^T dout - W^T du

``P`` and ``Q`` have the scale in them; the first term is an array of ``prepare.py``.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from typing import NamedTuple

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.kda.triton.config import BackwardConfig
from attn_tune.kernels.kda.triton.prepare import Prepared
from attn_tune.kernels.kda.triton.scan import carried, load_factors, load_rows, updates
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.states import load_state, store_state
from attn_tune.kernels.lang.triton.chunks.static import Static, load_tokens, store_tokens, tokens_of
from attn_tune.ops.recurrent.operands import BackwardInputs, Operands


class Kept(NamedTuple):
    """Arrays that the walk forwards leaves.

    Attributes:
      states: the state before each chunk ``[slots, N, H, V]``, in the working dtype.
      updates: the update of each token ``[R, T, N, V]``, likewise.
    """

    states: jax.Array
    updates: jax.Array


class Walked(NamedTuple):
    """Arrays that the walk backwards leaves.

    Attributes:
      state_gradients: the gradient of the state after each chunk ``[slots, N, H, V]``, in the working dtype.
      update_gradients: the gradients of the updates ``[R, T, N, V]``, in float32.
      dinitial_state: the gradient of the initial states.
    """

    state_gradients: jax.Array
    update_gradients: jax.Array
    dinitial_state: jax.Array


def keep_states(operands: Operands, prepared: Prepared, config: BackwardConfig, static: Static) -> Kept:
    """Walks all chunks forwards."""
    o = operands
    found = triton_call(
        states_kernel,
        o.initial_state,
        o.cu_seqlens,
        prepared.keys,
        prepared.known,
        prepared.values,
        prepared.factors,
        out_types=[
            jax.ShapeDtypeStruct((static.slots, static.heads, static.width, static.v_width), o.q.dtype),
            jax.ShapeDtypeStruct(o.v.shape, o.v.dtype),
        ],
        grid=(static.tiles * static.heads * static.batch, 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        name="kda_bwd_states",
    )
    return Kept(*found)


def walk_back(inputs: BackwardInputs, prepared: Prepared, config: BackwardConfig, static: Static) -> Walked:
    """Walks all chunks backwards."""
    o = inputs.operands
    found = triton_call(
        back_kernel,
        inputs.dout,
        inputs.dstate,
        o.cu_seqlens,
        prepared.queries,
        prepared.keys,
        prepared.known,
        prepared.factors,
        prepared.own_gradients,
        out_types=[
            jax.ShapeDtypeStruct((static.slots, static.heads, static.width, static.v_width), o.q.dtype),
            jax.ShapeDtypeStruct(o.v.shape, jnp.float32),
            jax.ShapeDtypeStruct((static.batch, static.heads, static.width, static.v_width), jnp.float32),
        ],
        grid=(static.tiles * static.heads * static.batch, 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        name="kda_bwd_walk",
    )
    return Walked(*found)


@triton.jit
def states_kernel(initial_state, cu_seqlens, keys, known, values, factors, states, kept, static: tl.constexpr):
    """One program per tile of columns, head and sequence."""
    head, sequence, begin, end, place, cols = walk_of(cu_seqlens, static)
    held = tl.full([static.block_h, static.block_v], 0, tl.float32)
    if initial_state is not None:
        held = load_state(initial_state, sequence * static.heads + head, cols, static)
    for chunk in tl.range(0, (end - begin + static.chunk - 1) // static.chunk):
        start = begin + chunk * static.chunk
        index = (place + chunk) * static.heads + head
        store_state(states, index, held, cols, static)
        update, _rounded = updates(held, known, values, start, end, end, head, cols, static.whole, static)
        store_tokens(kept, update, start, end, head, static.heads, static.v_width, cols, static.chunk)
        held = carried(held, keys, factors, update, start, end, head, index, static)


@triton.jit
def back_kernel(
    dout,
    dstate,
    cu_seqlens,
    queries,
    keys,
    known,
    factors,
    own_gradients,
    state_gradients,
    update_gradients,
    dinitial_state,
    static: tl.constexpr,
):
    """One program per tile of columns, head and sequence."""
    head, sequence, begin, end, place, cols = walk_of(cu_seqlens, static)
    precision: tl.constexpr = static.precision
    held = tl.full([static.block_h, static.block_v], 0, tl.float32)
    if dstate is not None:
        held = load_state(dstate, sequence * static.heads + head, cols, static)
    chunks = (end - begin + static.chunk - 1) // static.chunk
    for step in tl.range(0, chunks):
        start = begin + (chunks - 1 - step) * static.chunk
        index = (place + chunks - 1 - step) * static.heads + head
        store_state(state_gradients, index, held, cols, static)
        dout_tile = load_tokens(dout, start, end, head, static.heads, static.v_width, cols, static.chunk, static.whole)
        du = load_tokens(
            own_gradients, start, end, head, static.heads, static.v_width, cols, static.chunk, static.whole
        )
        k_tile = load_rows(keys, start, end, head, static)
        du = tl.dot(k_tile, held.to(k_tile.dtype), du, input_precision=precision)
        store_tokens(update_gradients, du, start, end, head, static.heads, static.v_width, cols, static.chunk)
        q_tile = load_rows(queries, start, end, head, static)
        known_tile = load_rows(known, start, end, head, static)
        held *= load_factors(factors, index, static)[:, None]
        held = tl.dot(tl.trans(q_tile), dout_tile, held, input_precision=precision)
        held = tl.dot(tl.trans(known_tile), (-du).to(k_tile.dtype), held, input_precision=precision)
    store_state(dinitial_state, sequence * static.heads + head, held, cols, static)


@triton.jit
def walk_of(cu_seqlens, static: tl.constexpr):
    """The head of a program, its sequence, that one's first token, end of tokens and first place, and its columns."""
    tile = tl.program_id(0) % static.tiles
    head = tl.program_id(0) // static.tiles % static.heads
    part = tl.program_id(0) // (static.tiles * static.heads)
    if static.ragged:
        part += 1
    sequence, begin, end, place = tokens_of(cu_seqlens, part, static)
    return head, sequence, begin, end, place, tile * static.block_v + tl.arange(0, static.block_v)
