"""The two walks of the backward: forwards for the states, which are kept, and backwards for their gradients.

With ``u = T (beta r)`` the updates of a chunk, ``r`` what of its values is not known yet, and ``S'`` the state after it
(``prepare.py``), the gradient ``y`` of ``beta r`` and that of the state before are::

    y  = scale mixed^T dout + carriers dS'
    dS = f dS' + q^T (scale f dout) - k^T (f beta y)

where ``f`` is the decay from the start of the chunk. No walk solves a system on its way from state to state.

Gradients of gates are small differences, so the updates are found in float32: 16 bits are multiplied three times
(``chunks/wide.py``). With an inverse of 16 bits ``dv`` alone would have up to the error that is allowed. States enter
products as rounded as they are kept: what is differentiated is then what was computed.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.gated_delta_rule._triton.prepare import Prepared
from attn_tune.kernels.gated_delta_rule._triton.walked import Kept, Walked
from attn_tune.kernels.gated_delta_rule.triton.config import BackwardConfig
from attn_tune.kernels.gated_delta_rule.triton.scan import (
    chunk_decay,
    load_decays,
    load_keys,
)
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.states import load_state, store_state
from attn_tune.kernels.lang.triton.chunks.static import (
    Static,
    load_lower,
    load_numbers,
    load_tokens,
    store_tokens,
    tokens_of,
)
from attn_tune.kernels.lang.triton.chunks.wide import solve, split, times_rounded
from attn_tune.ops.gated_delta_rule.operands import BackwardInputs


def walk(inputs: BackwardInputs, prepared: Prepared, config: BackwardConfig, static: Static) -> tuple[Kept, Walked]:
    """Walks all chunks forwards and backwards at one time: neither walk fills a device, or needs the other."""
    o = inputs.operands
    tokens = jax.ShapeDtypeStruct(o.v.shape, o.v.dtype)
    states = jax.ShapeDtypeStruct((static.slots, static.heads, static.width, static.v_width), o.q.dtype)
    found = triton_call(
        walk_kernel,
        o.q,
        o.k,
        o.v,
        o.beta,
        o.initial_state,
        inputs.dout,
        inputs.dstate,
        o.cu_seqlens,
        *prepared,
        out_types=[
            states,
            tokens,
            jax.ShapeDtypeStruct((1,) if static.is_wide else o.v.shape, o.v.dtype),
            states,
            tokens,
            tokens,
            jax.ShapeDtypeStruct((static.batch, static.heads, static.width, static.v_width), jnp.float32),
        ],
        grid=(static.tiles * static.heads * (static.parts + static.batch), 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        name="gated_delta_rule_bwd_walks",
    )
    return Kept(*found[:3]), Walked(*found[3:])


@triton.jit
def walk_kernel(
    q,
    k,
    v,
    beta,
    initial_state,
    dout,
    dstate,
    cu_seqlens,
    solved,
    carriers,
    mixed,
    decays,
    states,
    kept,
    rests,
    state_gradients,
    update_gradients,
    dv,
    dinitial_state,
    static: tl.constexpr,
):
    """One program per tile of columns, head and sequence, of each direction; tokens of no sequence get zeros."""
    tile = tl.program_id(0) % static.tiles
    head = tl.program_id(0) // static.tiles % static.heads
    part = tl.program_id(0) // (static.tiles * static.heads)
    is_back = part < static.parts
    if static.ragged:
        # That of tokens before the first sequence has no walk forwards.
        part = tl.where(is_back, part, part - static.parts + 1)
    else:
        part = tl.where(is_back, part, part - static.parts)
    sequence, begin, end, place = tokens_of(cu_seqlens, part, static)
    cols = tile * static.block_v + tl.arange(0, static.block_v)
    chunks = (end - begin + static.chunk - 1) // static.chunk
    held = tl.full([static.block_h, static.block_v], 0, tl.float32)
    if sequence < 0:
        nothing = tl.full([static.chunk, static.block_v], 0, tl.float32)
        for empty in tl.range(0, chunks):
            unused = begin + empty * static.chunk
            store_tokens(dv, nothing, unused, end, head, static.heads, static.v_width, cols, static.chunk)
    elif is_back:
        if dstate is not None:
            held = load_state(dstate, sequence * static.heads + head, cols, static)
        arrays = (q, k, beta, dout, carriers, mixed, decays)
        outputs = (state_gradients, update_gradients, dv)
        for step in tl.range(0, chunks):
            chunk = chunks - 1 - step
            start = begin + chunk * static.chunk
            index = (place + chunk) * static.heads + head
            held = back_step(held, arrays, outputs, start, end, head, index, cols, static)
        store_state(dinitial_state, sequence * static.heads + head, held, cols, static)
    else:
        if initial_state is not None:
            held = load_state(initial_state, sequence * static.heads + head, cols, static)
        for chunk in tl.range(0, chunks):
            start = begin + chunk * static.chunk
            index = (place + chunk) * static.heads + head
            store_state(states, index, held, cols, static)
            k_tile = load_keys(k, start, end, head, static)
            before = load_decays(decays, index, 0, static)[:, None]
            known = times_rounded(k_tile, held, None, static)
            v_tile = load_tokens(v, start, end, head, static.heads, static.v_width, cols, static.chunk, static.whole)
            values = weighed(v_tile.to(tl.float32) - known * before, beta, start, end, head, static)
            update = solve(solved, index, values, k_tile.dtype, static)
            high, low = split(update, k_tile.dtype)
            store_tokens(kept, high, start, end, head, static.heads, static.v_width, cols, static.chunk)
            if not static.is_wide:
                store_tokens(rests, low, start, end, head, static.heads, static.v_width, cols, static.chunk)
            carrier = tl.trans(load_carriers(carriers, index, static))
            held = times_rounded(carrier, values, held * chunk_decay(decays, index, static), static)


@triton.jit
def back_step(held, arrays, outputs, start, end, head, index, cols, static: tl.constexpr):
    """The gradient of the state before a chunk from that of the state after it."""
    q, k, beta, dout, carriers, mixed, decays = arrays
    state_gradients, update_gradients, dv = outputs
    store_state(state_gradients, index, held, cols, static)
    k_tile = load_keys(k, start, end, head, static)
    dout_tile = load_tokens(dout, start, end, head, static.heads, static.v_width, cols, static.chunk, static.whole)
    mixed_tile = tl.trans(load_lower(mixed, index, static.chunk))
    y = tl.dot(mixed_tile, dout_tile, input_precision=static.precision) * static.scale
    y = times_rounded(load_carriers(carriers, index, static), held, y, static)
    store_tokens(update_gradients, y, start, end, head, static.heads, static.v_width, cols, static.chunk)
    y = weighed(y, beta, start, end, head, static)
    store_tokens(dv, y, start, end, head, static.heads, static.v_width, cols, static.chunk)
    before = load_decays(decays, index, 0, static)[:, None]
    direct = (dout_tile.to(tl.float32) * (before * static.scale)).to(k_tile.dtype)
    held *= chunk_decay(decays, index, static)
    held = tl.dot(tl.trans(load_keys(q, start, end, head, static)), direct, held, input_precision=static.precision)
    return times_rounded(tl.trans(k_tile), y * -before, held, static)


@triton.jit
def weighed(values, beta, start, end, head, static: tl.constexpr):
    """Numbers in the shape of a chunk's values, times the strengths of their tokens."""
    if beta is not None:
        values *= load_numbers(beta, start, end, head, static.heads, static.chunk, 0.0)[:, None]
    return values


@triton.jit
def load_carriers(carriers, index, static: tl.constexpr):
    """The carriers of a chunk and value head."""
    rows = tl.arange(0, static.block_h)
    first = index * static.chunk
    return load_tokens(carriers, first, first + static.chunk, 0, 1, static.width, rows, static.chunk, static.whole)
