"""The walk over the chunks of a sequence: a program holds some columns of one head's state in registers."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.gated_delta_rule.triton.config import ForwardConfig
from attn_tune.kernels.gated_delta_rule.triton.prepare import Prepared
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.states import chunks_of, load_state, store_state
from attn_tune.kernels.lang.triton.chunks.static import (
    Static,
    load_lower,
    load_numbers,
    load_tokens,
    store_tokens,
    tokens_of,
)
from attn_tune.kernels.lang.triton.chunks.wide import times_wide
from attn_tune.ops.gated_delta_rule.operands import Operands


def scan(
    operands: Operands, prepared: Prepared, starts: jax.Array | None, config: ForwardConfig, static: Static
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
        o.beta,
        starts,
        o.cu_seqlens,
        *prepared,
        out_types=[
            jax.ShapeDtypeStruct(o.v.shape, o.v.dtype),
            jax.ShapeDtypeStruct((static.batch, static.heads, static.width, static.v_width), jnp.float32),
        ],
        grid=(static.tiles * static.heads * static.parts * static.segments, 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        name="gated_delta_rule_scan",
    )
    return out, state


@triton.jit
def scan_kernel(q, k, v, beta, starts, cu_seqlens, solved, mixed, decays, out, state, static: tl.constexpr):
    """One program per tile of columns, head and segment of a sequence; tokens of no sequence get zeros."""
    tile = tl.program_id(0) % static.tiles
    head = tl.program_id(0) // static.tiles % static.heads
    segment = tl.program_id(0) // (static.tiles * static.heads) % static.segments
    part = tl.program_id(0) // (static.tiles * static.heads * static.segments)
    sequence, begin, end, place = tokens_of(cu_seqlens, part, static)
    first, last = chunks_of(begin, end, segment, static)
    cols = tile * static.block_v + tl.arange(0, static.block_v)
    if sequence >= 0:
        held = tl.full([static.block_h, static.block_v], 0, tl.float32)
        if starts is not None:
            held = load_state(starts, (sequence * static.segments + segment) * static.heads + head, cols, static)
        arrays = (q, k, v, beta, solved, mixed, decays)
        for chunk in tl.range(first, last):
            start = begin + chunk * static.chunk
            index = (place + chunk) * static.heads + head
            held = forward_step(held, arrays, out, start, end, head, index, cols, static)
        # The segment of the last chunk, and the first one of an empty sequence.
        has_end = (last * static.chunk >= end - begin) & ((first < last) | (segment == 0))
        if has_end:
            store_state(state, sequence * static.heads + head, held, cols, static)
    else:
        nothing = tl.full([static.chunk, static.block_v], 0, tl.float32)
        for empty in tl.range(first, last):
            unused = begin + empty * static.chunk
            store_tokens(out, nothing, unused, end, head, static.heads, static.v_width, cols, static.chunk)


@triton.jit
def forward_step(held, arrays, out, start, end, head, index, cols, static: tl.constexpr):
    """The state after a chunk; the chunk's outputs are stored."""
    q, k, v, beta, solved, mixed, decays = arrays
    values, k_tile, rounded, after, factor = updates(
        held, k, v, beta, decays, start, end, end, head, index, cols, static.whole, False, static
    )
    key_head = head // static.group
    rows = tl.arange(0, static.block_h)
    q_tile = load_tokens(q, start, end, key_head, static.key_heads, static.width, rows, static.chunk, static.whole)
    before = tl.load(decays + index.to(tl.int64) * (2 * static.chunk) + tl.arange(0, static.chunk))
    found = tl.dot(q_tile, rounded, input_precision=static.precision) * before[:, None]
    found = tl.dot(load_lower(mixed, index, static.chunk), values, found, input_precision=static.precision)
    store_tokens(out, found * static.scale, start, end, head, static.heads, static.v_width, cols, static.chunk)
    update = tl.dot(load_lower(solved, index, static.chunk), values, input_precision=static.precision)
    return carried(held, k_tile, update, after, factor, static)


@triton.jit
def carried(held, k_tile, update, after, factor, static: tl.constexpr):
    """The state after a chunk from that before it and the chunk's updates, which are rounded."""
    update = (update * after[:, None]).to(k_tile.dtype)
    return tl.dot(tl.trans(k_tile), update, held * factor, input_precision=static.precision)


@triton.jit
def updates(
    held,
    k,
    v,
    beta,
    decays,
    start,
    end,
    v_end,
    head,
    index,
    cols,
    whole: tl.constexpr,
    EXACT: tl.constexpr,
    static: tl.constexpr,
):
    """The right side of a chunk's system, and what the state after it needs.

    Args:
      v_end: values from this token on count as zero.
      whole: no value of the chunk does.
      EXACT: the state is not rounded, nor is the right side.

    Returns:
      ``beta (v - f S^T k)`` in the working dtype or in float32, the keys, the state in the working dtype, the decays to
      the end of the chunk, and that of the whole chunk.
    """
    rows = tl.arange(0, static.block_h)
    key_head = head // static.group
    k_tile = load_tokens(k, start, end, key_head, static.key_heads, static.width, rows, static.chunk, static.whole)
    v_tile = load_tokens(v, start, v_end, head, static.heads, static.v_width, cols, static.chunk, whole)
    decays += index.to(tl.int64) * (2 * static.chunk)
    before = tl.load(decays + tl.arange(0, static.chunk))
    after = tl.load(decays + static.chunk + tl.arange(0, static.chunk))
    factor = tl.load(decays + static.chunk - 1)
    rounded = held.to(k_tile.dtype)
    if EXACT:
        known = times_wide(k_tile, held, None, static)
    else:
        known = tl.dot(k_tile, rounded, input_precision=static.precision)
    values = v_tile.to(tl.float32) - known * before[:, None]
    if beta is not None:
        values *= load_numbers(beta, start, end, head, static.heads, static.chunk, 0.0)[:, None]
    if not EXACT:
        values = values.to(k_tile.dtype)
    return values, k_tile, rounded, after, factor
