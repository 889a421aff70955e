"""The walk over the chunks of a sequence: a program holds some columns of one head's state in registers."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.gated_delta_rule._triton.prepare import Prepared
from attn_tune.kernels.gated_delta_rule.triton.config import ForwardConfig
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
        prepared.solved,
        prepared.mixed,
        prepared.decays,
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
            index = (sequence * static.segments + segment) * static.heads + head
            held = load_state(starts, index, cols, static)
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
    values, k_tile, rounded, after, factor = right_side(
        held, k, v, beta, decays, start, end, end, head, index, cols, static.whole, static
    )
    q_tile = load_keys(q, start, end, head, static)
    before = load_decays(decays, index, 0, static)[:, None]
    found = tl.dot(q_tile, rounded, input_precision=static.precision) * before
    found = tl.dot(load_lower(mixed, index, static.chunk), values, found, input_precision=static.precision)
    store_tokens(out, found * static.scale, start, end, head, static.heads, static.v_width, cols, static.chunk)
    return carried(held, k_tile, values, after, factor, solved, index, static)


@triton.jit
def right_side(
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
    static: tl.constexpr,
):
    """The right side ``beta (v - f S^T k)`` of a chunk's system, rounded, and what the state after it needs.

    All that is read stands before the first product: a walk that read values and decays where they are needed took
    1005 us, not 919 (H200, 16/64 heads, 32768 tokens).

    Args:
      v_end: values from this token on count as zero.
      whole: no value of the chunk does.

    Returns:
      The right side, the keys, the rounded state, the decays to the end of the chunk, and that of the whole chunk.
    """
    k_tile = load_keys(k, start, end, head, static)
    v_tile = load_tokens(v, start, v_end, head, static.heads, static.v_width, cols, static.chunk, whole)
    before = load_decays(decays, index, 0, static)
    after = load_decays(decays, index, 1, static)
    factor = chunk_decay(decays, index, static)
    rounded = held.to(k_tile.dtype)
    known = tl.dot(k_tile, rounded, input_precision=static.precision)
    values = v_tile.to(tl.float32) - known * before[:, None]
    if beta is not None:
        values *= load_numbers(beta, start, end, head, static.heads, static.chunk, 0.0)[:, None]
    return values.to(k_tile.dtype), k_tile, rounded, after, factor


@triton.jit
def carried(held, k_tile, values, after, factor, solved, index, static: tl.constexpr):
    """The state after a chunk from that before it and what ``right_side`` returns."""
    update = tl.dot(load_lower(solved, index, static.chunk), values, input_precision=static.precision)
    update = (update * after[:, None]).to(k_tile.dtype)
    return tl.dot(tl.trans(k_tile), update, held * factor, input_precision=static.precision)


@triton.jit
def load_keys(x, start, end, head, static: tl.constexpr):
    """The queries or keys of a chunk that a value head has."""
    rows = tl.arange(0, static.block_h)
    key_head = head // static.group
    return load_tokens(x, start, end, key_head, static.key_heads, static.width, rows, static.chunk, static.whole)


@triton.jit
def load_decays(decays, index, which: tl.constexpr, static: tl.constexpr):
    """The decays from the start of a chunk to each token, or to the chunk's end if ``which`` is one."""
    base = decays + index.to(tl.int64) * (2 * static.chunk)
    return tl.load(base + which * static.chunk + tl.arange(0, static.chunk))


@triton.jit
def chunk_decay(decays, index, static: tl.constexpr):
    """The decay of a whole chunk."""
    return tl.load(decays + index.to(tl.int64) * (2 * static.chunk) + static.chunk - 1)
