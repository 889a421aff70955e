"""The walk over the chunks of a sequence: a program holds some columns of one head's state in registers."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.kda.triton.config import ForwardConfig
from attn_tune.kernels.kda.triton.prepare import Prepared
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.states import chunks_of, load_state, store_state
from attn_tune.kernels.lang.triton.chunks.static import Static, load_lower, load_tokens, store_tokens, tokens_of
from attn_tune.ops.recurrent.operands import Operands


def scan(
    operands: Operands, prepared: Prepared, starts: jax.Array | None, config: ForwardConfig, static: Static
) -> tuple[jax.Array, jax.Array]:
    """The outputs of all tokens and the final states.

    Args:
      starts: the states at the start of each segment ``[B, segments, N, H, V]``, or ``[B, N, H, V]`` of sequences that
        are not cut; None where these are zero.
    """
    out, state = triton_call(
        scan_kernel,
        starts,
        operands.cu_seqlens,
        *prepared[:6],
        out_types=[
            jax.ShapeDtypeStruct(operands.v.shape, operands.v.dtype),
            jax.ShapeDtypeStruct((static.batch, static.heads, static.width, static.v_width), jnp.float32),
        ],
        grid=(static.tiles * static.heads * static.parts * static.segments, 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        name="kda_scan",
    )
    return out, state


@triton.jit
def scan_kernel(starts, cu_seqlens, queries, keys, known, values, factors, pairs, out, state, static: tl.constexpr):
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
        for chunk in tl.range(first, last):
            start = begin + chunk * static.chunk
            index = (place + chunk) * static.heads + head
            update, rounded = updates(held, known, values, start, end, end, head, cols, static.whole, static)
            q_tile = load_rows(queries, start, end, head, static)
            found = tl.dot(q_tile, rounded, input_precision=static.precision)
            found = tl.dot(load_lower(pairs, index, static.chunk), update, found, input_precision=static.precision)
            store_tokens(out, found, start, end, head, static.heads, static.v_width, cols, static.chunk)
            held = carried(held, keys, factors, update, start, end, head, index, static)
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
def updates(held, known, values, start, end, v_end, head, cols, whole: tl.constexpr, static: tl.constexpr):
    """The updates of a chunk and the state before it, both in the working dtype.

    Args:
      v_end: values from this token on count as zero.
      whole: no value of the chunk does.
    """
    known_tile = load_rows(known, start, end, head, static)
    tile = load_tokens(values, start, v_end, head, static.heads, static.v_width, cols, static.chunk, whole)
    rounded = held.to(known_tile.dtype)
    update = tile - tl.dot(known_tile, rounded, input_precision=static.precision)
    return update.to(known_tile.dtype), rounded


@triton.jit
def carried(held, keys, factors, update, start, end, head, index, static: tl.constexpr):
    """The state after a chunk from that before it and the chunk's updates."""
    k_tile = load_rows(keys, start, end, head, static)
    held *= load_factors(factors, index, static)[:, None]
    return tl.dot(tl.trans(k_tile), update, held, input_precision=static.precision)


@triton.jit
def load_rows(x, start, end, head, static: tl.constexpr):
    """All channels of a chunk's tokens, of one value head."""
    rows = tl.arange(0, static.block_h)
    return load_tokens(x, start, end, head, static.heads, static.width, rows, static.chunk, static.whole)


@triton.jit
def load_factors(factors, index, static: tl.constexpr):
    """The decay of each channel in a whole chunk."""
    rows = tl.arange(0, static.block_h)
    return tl.load(factors + index.to(tl.int64) * static.width + rows, mask=rows < static.width, other=0.0)
