"""The walks of the backward, forwards and backwards at one time: they leave what chunks are differentiated by.

Forwards the state before each chunk is kept. Backwards it is the gradient of the state after each chunk: with that of
the state after all tokens at the start, and ``f`` the decays from the start of the chunk (``scan.py``)::

    dS = f[last] dS' + sum over i of q[i] (scale f[i] dout[i])^T

Neither needs the other, and each step is one product: the walks fill a device together.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from typing import NamedTuple

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.states import load_state, store_state
from attn_tune.kernels.lang.triton.chunks.static import tokens_of
from attn_tune.kernels.lang.triton.linear.config import BackwardConfig
from attn_tune.kernels.lang.triton.linear.decays import load_decays
from attn_tune.kernels.lang.triton.linear.scan import Tokens, carried, decays_of_chunk, load_keys, load_values
from attn_tune.kernels.lang.triton.linear.static import Static


class Walked(NamedTuple):
    """Arrays that the walks leave.

    Attributes:
      states: the state before each chunk ``[slots, N, parts, H, V]``, as a sum of these.
      gradients: the gradient of the state after each chunk, likewise.
      dinitial_state: the gradient of the initial states.
    """

    states: jax.Array
    gradients: jax.Array
    dinitial_state: jax.Array


def walk(
    tokens: Tokens,
    initial_state: jax.Array | None,
    dout: jax.Array,
    dstate: jax.Array | None,
    config: BackwardConfig,
    static: Static,
) -> Walked:
    """Walks all chunks in both directions."""
    t = tokens
    kept = jax.ShapeDtypeStruct(
        (static.slots, static.heads, static.state_parts, static.width, static.v_width), t.q.dtype
    )
    found = triton_call(
        walk_kernel,
        t.q,
        t.k,
        t.v,
        t.decays,
        t.factors,
        t.cu_seqlens,
        initial_state,
        dout,
        dstate,
        out_types=[
            kept,
            kept,
            jax.ShapeDtypeStruct((static.batch, static.heads, static.width, static.v_width), jnp.float32),
        ],
        grid=(2 * static.tiles * static.heads * static.batch, 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        name="linear_attention_bwd_walks",
    )
    return Walked(*found)


@triton.jit
def walk_kernel(
    q,
    k,
    v,
    decays,
    factors,
    cu_seqlens,
    initial_state,
    dout,
    dstate,
    states,
    gradients,
    dinitial_state,
    static: tl.constexpr,
):
    """Two programs per tile of columns, head and sequence, one of each direction."""
    tile = tl.program_id(0) % static.tiles
    head = tl.program_id(0) // static.tiles % static.heads
    part = tl.program_id(0) // (2 * static.tiles * static.heads)
    is_back = tl.program_id(0) // (static.tiles * static.heads) % 2 == 1
    if static.ragged:
        part += 1
    sequence, begin, end, place = tokens_of(cu_seqlens, part, static)
    cols = tile * static.block_v + tl.arange(0, static.block_v)
    chunks = (end - begin + static.chunk - 1) // static.chunk
    held = tl.full([static.block_h, static.block_v], 0, tl.float32)
    if is_back:
        if dstate is not None:
            held = load_state(dstate, sequence * static.heads + head, cols, static)
        for step in tl.range(0, chunks):
            chunk = chunks - 1 - step
            start = begin + chunk * static.chunk
            store_parts(gradients, (place + chunk) * static.heads + head, held, cols, static)
            q_tile = load_keys(q, start, end, head, static)
            dout_tile = load_values(dout, start, end, head, cols, static)
            _, factor = decays_of_chunk(decays, factors, head, place + chunk, static)
            before = 1.0
            if static.gate == "head" or static.gate == "constant":
                before = load_decays(decays, place + chunk, head, 0, static)
            held = carried(held, q_tile, dout_tile, before, factor, static.scale, static)
        store_state(dinitial_state, sequence * static.heads + head, held, cols, static)
    else:
        if initial_state is not None:
            held = load_state(initial_state, sequence * static.heads + head, cols, static)
        for chunk in tl.range(0, chunks):
            start = begin + chunk * static.chunk
            store_parts(states, (place + chunk) * static.heads + head, held, cols, static)
            k_tile = load_keys(k, start, end, head, static)
            v_tile = load_values(v, start, end, head, cols, static)
            after, factor = decays_of_chunk(decays, factors, head, place + chunk, static)
            held = carried(held, k_tile, v_tile, after, factor, 1, static)


@triton.jit
def store_parts(kept, index, held, cols, static: tl.constexpr):
    """Stores some columns of one state in its parts."""
    high = held.to(kept.dtype.element_ty)
    store_state(kept, index * static.state_parts, high, cols, static)
    if static.state_parts == 2:
        store_state(kept, index * 2 + 1, held - high.to(tl.float32), cols, static)
