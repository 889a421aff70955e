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
from attn_tune.ops.recurrent.operands import BackwardInputs


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


def walk_chunks(
    inputs: BackwardInputs, prepared: Prepared, config: BackwardConfig, static: Static
) -> tuple[Kept, Walked]:
    """Walks all chunks forwards and backwards, in one launch: neither walk needs the other, nor fills a device."""
    o = inputs.operands
    states = jax.ShapeDtypeStruct((static.slots, static.heads, static.width, static.v_width), o.q.dtype)
    found = triton_call(
        walks_kernel,
        o.initial_state,
        inputs.dstate,
        inputs.dout,
        o.cu_seqlens,
        prepared.queries,
        prepared.keys,
        prepared.known,
        prepared.values,
        prepared.factors,
        prepared.own_gradients,
        out_types=[
            states,
            jax.ShapeDtypeStruct(o.v.shape, o.v.dtype),
            states,
            jax.ShapeDtypeStruct(o.v.shape, jnp.float32),
            jax.ShapeDtypeStruct((static.batch, static.heads, static.width, static.v_width), jnp.float32),
        ],
        grid=(2 * static.tiles * static.heads * static.batch, 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        name="kda_bwd_walks",
    )
    return Kept(*found[:2]), Walked(*found[2:])


@triton.jit
def walks_kernel(
    initial_state,
    dstate,
    dout,
    cu_seqlens,
    queries,
    keys,
    known,
    values,
    factors,
    own_gradients,
    states,
    kept,
    state_gradients,
    update_gradients,
    dinitial_state,
    static: tl.constexpr,
):
    """Two programs per tile of columns, head and sequence, of which the first walks forwards."""
    head, sequence, begin, end, place, cols = walk_of(cu_seqlens, tl.program_id(0) // 2, static)
    forwards = (initial_state, keys, known, values, factors, states, kept)
    backwards = (dstate, dout, queries, keys, known, factors, own_gradients)
    results = (state_gradients, update_gradients, dinitial_state)
    if tl.program_id(0) % 2 == 0:
        walk_forwards(forwards, head, sequence, begin, end, place, cols, static)
    else:
        walk_back(backwards, results, head, sequence, begin, end, place, cols, static)


@triton.jit
def walk_forwards(arrays, head, sequence, begin, end, place, cols, static: tl.constexpr):
    """Keeps the state before each chunk and the updates of its tokens."""
    initial_state, keys, known, values, factors, states, kept = arrays
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
def walk_back(arrays, results, head, sequence, begin, end, place, cols, static: tl.constexpr):
    """Makes the gradients of the states after chunks, of the updates, and of the initial state."""
    dstate, dout, queries, keys, known, factors, own_gradients = arrays
    state_gradients, update_gradients, dinitial_state = results
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
def walk_of(cu_seqlens, walk, static: tl.constexpr):
    """The head of a walk, its sequence, that one's first token, end of tokens and first place, and its columns."""
    tile = walk % static.tiles
    head = walk // static.tiles % static.heads
    part = walk // (static.tiles * static.heads)
    if static.ragged:
        part += 1
    sequence, begin, end, place = tokens_of(cu_seqlens, part, static)
    return head, sequence, begin, end, place, tile * static.block_v + tl.arange(0, static.block_v)
