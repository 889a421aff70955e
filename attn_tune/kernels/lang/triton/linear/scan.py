"""The forward: a walk over the chunks of a sequence, or of each segment of it.

In a chunk that starts with the state ``S``, with ``D[i, j]`` the decay from token ``j`` to ``i``, ``f[i]`` that from
the start to ``i`` and ``e[j]`` that from ``j`` to the end::

    out[i] = scale (f[i] S^T q[i] + sum over j <= i of D[i, j] (q[i] . k[j]) v[j])
    S'     = f[last] S + sum over j of e[j] k[j] v[j]^T

With a gate a channel, ``f`` and ``e`` are multiplied into queries and keys, and the sums over channels in the second
term are made, by the launch before (``channels.py``).

A program holds some columns of a state in float32 registers, turned or not (``chunks/turned.py``), and reads every
token of its segment once: without segments the arrays are read once by each tile of columns, and nothing else is
written than the outputs. Of segments, a launch before finds what each adds to the state by itself; a program sums those
before its own up.
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
from attn_tune.kernels.lang.triton.chunks.states import chunks_of, load_state, store_state
from attn_tune.kernels.lang.triton.chunks.static import load_lower, load_tokens, store_tokens, tokens_of
from attn_tune.kernels.lang.triton.chunks.turned import by_row, by_token, load_columns, product, turn
from attn_tune.kernels.lang.triton.chunks.wide import times_wide
from attn_tune.kernels.lang.triton.linear.config import ForwardConfig
from attn_tune.kernels.lang.triton.linear.decays import decay_of_chunk, load_decays, pair_decays
from attn_tune.kernels.lang.triton.linear.static import Static


class Tokens(NamedTuple):
    """Arrays of all tokens, as walks read them.

    Attributes:
      q, k: queries and keys ``[R, T, K, H]``; with a gate a channel ``[R, T, N, H]``, decayed from the start and to the
        end of their chunk.
      v: values ``[R, T, N, V]``.
      g: gates; None without them, and with a gate a channel.
      decays: those of each chunk (``decays.py``), where there are gates in ``g``.
      mixed: with a gate a channel the decayed products of queries and keys ``[slots, N, chunk, chunk]``.
      factors: with a gate a channel the decay of each chunk, float32 ``[slots, N, H]``.
      cu_seqlens: where sequences begin, of a ragged call.
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    g: jax.Array | None
    decays: jax.Array | None
    mixed: jax.Array | None
    factors: jax.Array | None
    cu_seqlens: jax.Array | None


def scan(
    tokens: Tokens, initial_state: jax.Array | None, config: ForwardConfig, static: Static
) -> tuple[jax.Array, jax.Array]:
    """The outputs of all tokens and the final states."""
    states = (static.heads, static.width, static.v_width)
    options = {
        "constexprs": {"static": static},
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
    }
    added, decayed = None, None
    if static.segments > 1:
        rows = static.width if static.gate == "channel" else 1
        before = (static.batch, static.segments - 1)
        t = tokens
        added, decayed = triton_call(
            segments_kernel,
            t.k,
            t.v,
            t.decays,
            t.factors,
            t.cu_seqlens,
            out_types=[
                jax.ShapeDtypeStruct((*before, *states), jnp.float32),
                jax.ShapeDtypeStruct((*before, static.heads, rows), jnp.float32),
            ],
            grid=(static.tiles * static.heads * (static.segments - 1) * static.batch, 1, 1),
            name="linear_attention_segments",
            **options,
        )
    out, state = triton_call(
        scan_kernel,
        *tokens,
        initial_state,
        added,
        decayed,
        out_types=[
            jax.ShapeDtypeStruct(tokens.v.shape, tokens.v.dtype),
            jax.ShapeDtypeStruct((static.batch, *states), jnp.float32),
        ],
        grid=(static.tiles * static.heads * static.parts * static.segments, 1, 1),
        name="linear_attention_scan",
        **options,
    )
    return out, state


@triton.jit
def scan_kernel(
    q, k, v, g, decays, mixed, factors, cu_seqlens, initial_state, added, decayed, out, state, static: tl.constexpr
):
    """One program per tile of columns, head and segment of a sequence; tokens of no sequence get zeros."""
    tile = tl.program_id(0) % static.tiles
    head = tl.program_id(0) // static.tiles % static.heads
    segment = tl.program_id(0) // (static.tiles * static.heads) % static.segments
    part = tl.program_id(0) // (static.tiles * static.heads * static.segments)
    sequence, begin, end, place = tokens_of(cu_seqlens, part, static)
    first, last = chunks_of(begin, end, segment, static)
    cols = tile * static.block_v + tl.arange(0, static.block_v)
    if sequence >= 0:
        held = turn(tl.full([static.block_h, static.block_v], 0, tl.float32), static)
        if initial_state is not None:
            held = turn(load_state(initial_state, sequence * static.heads + head, cols, static), static)
        if static.segments > 1:
            held = start_of_segment(held, added, decayed, sequence, segment, head, cols, static)
        arrays = (q, k, v, g, decays, mixed, factors)
        for chunk in tl.range(first, last):
            start = begin + chunk * static.chunk
            held = forward_step(held, arrays, out, start, end, head, place + chunk, cols, static)
        # The segment of the last chunk, and the first one of an empty sequence.
        has_end = (last * static.chunk >= end - begin) & ((first < last) | (segment == 0))
        if has_end:
            store_state(state, sequence * static.heads + head, turn(held, static), cols, static)
    else:
        nothing = tl.full([static.chunk, static.block_v], 0, tl.float32)
        for empty in tl.range(first, last):
            unused = begin + empty * static.chunk
            store_tokens(out, nothing, unused, end, head, static.heads, static.v_width, cols, static.chunk)


@triton.jit
def segments_kernel(k, v, decays, factors, cu_seqlens, added, decayed, static: tl.constexpr):
    """One program per tile of columns, head and segment of a sequence but the last: what it adds to the state."""
    tile = tl.program_id(0) % static.tiles
    head = tl.program_id(0) // static.tiles % static.heads
    segment = tl.program_id(0) // (static.tiles * static.heads) % (static.segments - 1)
    part = tl.program_id(0) // (static.tiles * static.heads * (static.segments - 1))
    if static.ragged:
        part += 1
    sequence, begin, end, place = tokens_of(cu_seqlens, part, static)
    first, last = chunks_of(begin, end, segment, static)
    cols = tile * static.block_v + tl.arange(0, static.block_v)
    rows = tl.arange(0, static.block_h)
    held = turn(tl.full([static.block_h, static.block_v], 0, tl.float32), static)
    kept = tl.full([static.block_h], 1.0, tl.float32)
    for chunk in tl.range(first, last):
        start = begin + chunk * static.chunk
        k_tile = load_keys(k, start, end, head, static)
        v_tile = load_values(v, start, end, head, cols, static)
        after, factor = decays_of_chunk(decays, factors, head, place + chunk, static)
        held = carried(held, k_tile, v_tile, after, factor, 1, static)
        kept *= factor
    index = (sequence * (static.segments - 1) + segment) * static.heads + head
    store_state(added, index, turn(held, static), cols, static)
    if tile == 0:
        if static.gate == "channel":
            tl.store(decayed + index.to(tl.int64) * static.width + rows, kept, mask=rows < static.width)
        else:
            tl.store(decayed + index + rows, kept, mask=rows < 1)


@triton.jit
def start_of_segment(held, added, decayed, sequence, segment, head, cols, static: tl.constexpr):
    """The state at the start of a segment, from that of the sequence and what the segments before add."""
    rows = tl.arange(0, static.block_h)
    for earlier in tl.range(0, segment):
        index = (sequence * (static.segments - 1) + earlier) * static.heads + head
        if static.gate == "channel":
            kept = tl.load(decayed + index.to(tl.int64) * static.width + rows, mask=rows < static.width, other=0.0)
        else:
            kept = tl.load(decayed + index + rows * 0)
        held = held * by_row(kept, static) + turn(load_state(added, index, cols, static), static)
    return held


@triton.jit
def forward_step(held, arrays, out, start, end, head, slot, cols, static: tl.constexpr):
    """The state after a chunk; the chunk's outputs are stored."""
    q, k, v, g, decays, mixed, factors = arrays
    k_tile = load_keys(k, start, end, head, static)
    q_tile = load_keys(q, start, end, head, static)
    v_tile = load_values(v, start, end, head, cols, static)
    found = product(q_tile, held.to(q_tile.dtype), None, static)
    if static.gate == "channel":
        weights = load_lower(mixed, slot * static.heads + head, static.chunk)
    else:
        products = tl.dot(q_tile, tl.trans(k_tile), input_precision=static.precision)
        if static.gate == "none":
            row = tl.arange(0, static.chunk)
            products = tl.where(row[:, None] >= row[None, :], products, 0.0)
        else:
            products *= pair_decays(g, decays, start, end, slot, head, static)
            found *= by_token(load_decays(decays, slot, head, 0, static), static)
        weights = products.to(v_tile.dtype)
    found = product(weights, v_tile, found, static)
    found = turn((found * static.scale).to(v_tile.dtype), static)
    store_tokens(out, found, start, end, head, static.heads, static.v_width, cols, static.chunk)
    after, factor = decays_of_chunk(decays, factors, head, slot, static)
    return carried(held, k_tile, v_tile, after, factor, 1, static)


@triton.jit
def carried(held, k_tile, v_tile, after, factor, SCALE: tl.constexpr, static: tl.constexpr):
    """The state after a chunk from that before it.

    Args:
      after: the decays ``[chunk]`` to the end of the chunk, or one where keys have them.
      factor: the decay of the whole chunk; with a gate a channel ``[block_h]``.
      SCALE: multiplies the products of keys and values.
    """
    if static.gate == "head" or static.gate == "constant":
        values = v_tile.to(tl.float32) * by_token(after * SCALE, static)
        held *= factor
        if static.state_parts == 2:
            return times_wide(tl.trans(k_tile), values, held, static)
        else:
            return product(tl.trans(k_tile), values.to(k_tile.dtype), held, static)
    else:
        if static.gate == "channel":
            held *= by_row(factor, static)
        if SCALE == 1:
            return product(tl.trans(k_tile), v_tile, held, static)
        else:
            return held + product(tl.trans(k_tile), v_tile, None, static) * SCALE


@triton.jit
def decays_of_chunk(decays, factors, head, slot, static: tl.constexpr):
    """The decays that ``carried`` takes."""
    if static.gate == "channel":
        rows = tl.arange(0, static.block_h)
        base = factors + (slot.to(tl.int64) * static.heads + head) * static.width
        after = 1.0
        factor = tl.load(base + rows, mask=rows < static.width, other=0.0)
    elif static.gate == "none":
        after = 1.0
        factor = 1.0
    else:
        after = load_decays(decays, slot, head, 1, static)
        factor = decay_of_chunk(decays, slot, head, static)
    return after, factor


@triton.jit
def load_keys(x, start, end, head, static: tl.constexpr):
    """The queries or keys of a chunk that a value head has."""
    rows = tl.arange(0, static.block_h)
    key_head = head // static.group
    return load_tokens(x, start, end, key_head, static.key_heads, static.width, rows, static.chunk, static.whole)


@triton.jit
def load_values(x, start, end, head, cols, static: tl.constexpr):
    """Some columns of the values of a chunk, or of what is like them."""
    return load_columns(x, start, end, head, cols, static.whole, static)
