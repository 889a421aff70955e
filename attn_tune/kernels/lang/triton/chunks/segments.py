"""The states at the start of each segment of a sequence, so that segments are walked at one time.

A segment makes ``M S + Z`` of the state ``S`` at its start: ``Z`` is the state that it ends with when it starts with
zero, and a column of ``M`` that with which it ends when it starts with a column of the identity and all values are
zero. One launch walks all segments for both, with the steps of its op, and one applies them in turn. This is exact:
nothing is left out because it decayed.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.states import chunks_of, load_state, store_state
from attn_tune.kernels.lang.triton.chunks.static import Static, tokens_of


def segment_starts(
    op: str,
    kernel: Any,
    arrays: Sequence[jax.Array | None],
    initial_state: jax.Array | None,
    config: Any,
    static: Static,
) -> jax.Array:
    """The float32 states at the start of each segment ``[B, segments, N, H, V]``: ``M S + Z`` of that before.

    Args:
      op: its name, which profilers show.
      kernel: walks a segment for ``M`` and ``Z``, between ``place_of`` and ``store_end``.
      arrays: its operands.
      config: ``num_warps`` and ``num_stages`` of a walk.
    """
    places = (static.batch, static.segments, static.heads, static.width)
    tiles = static.tiles + -(-static.width // static.block_v)
    matrices, ends = triton_call(
        kernel,
        *arrays,
        out_types=[
            jax.ShapeDtypeStruct((*places, static.width), jnp.float32),
            jax.ShapeDtypeStruct((*places, static.v_width), jnp.float32),
        ],
        grid=(tiles * static.heads * (static.segments - 1) * static.batch, 1, 1),
        constexprs={"static": static},
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        name=f"{op}_transitions",
    )
    return starts_of(op, initial_state, matrices, ends, static)


def starts_of(
    op: str, initial_state: jax.Array | None, matrices: jax.Array, ends: jax.Array, static: Static
) -> jax.Array:
    """The states at the start of each segment from ``matrices`` ``M`` and ``ends`` ``Z``."""
    (starts,) = triton_call(
        starts_kernel,
        initial_state,
        matrices,
        ends,
        out_types=[jax.ShapeDtypeStruct(ends.shape, jnp.float32)],
        grid=(static.tiles * static.heads * static.batch, 1, 1),
        constexprs={"static": static},
        # A whole matrix is an operand.
        num_warps=8,
        num_stages=1,
        name=f"{op}_starts",
    )
    return starts


@triton.jit
def place_of(cu_seqlens, static: tl.constexpr):
    """The walk of a program: of a tile of columns of ``Z`` or ``M``, a head, and a segment of a sequence but the last.

    Returns:
      The sequence, the segment and the head; the sequence's first token, the end of its tokens, and its first place;
      the segment's first chunk, and the end of its chunks; the columns, and whether they are those of ``Z``.
    """
    tiles: tl.constexpr = static.tiles + (static.width + static.block_v - 1) // static.block_v
    tile = tl.program_id(0) % tiles
    head = tl.program_id(0) // tiles % static.heads
    segment = tl.program_id(0) // (tiles * static.heads) % (static.segments - 1)
    part = tl.program_id(0) // (tiles * static.heads * (static.segments - 1))
    if static.ragged:
        part += 1
    sequence, begin, end, place = tokens_of(cu_seqlens, part, static)
    first, last = chunks_of(begin, end, segment, static)
    of_values = tile < static.tiles
    cols = tl.where(of_values, tile, tile - static.tiles) * static.block_v + tl.arange(0, static.block_v)
    return sequence, segment, head, begin, end, place, first, last, cols, of_values


@triton.jit
def start_of(cols, of_values, static: tl.constexpr):
    """The state that a segment starts with: zero, or columns of the identity."""
    rows = tl.arange(0, static.block_h)
    return tl.where((rows[:, None] == cols[None, :]) & (of_values == 0), 1.0, 0.0)


@triton.jit
def store_end(matrices, ends, held, sequence, segment, head, cols, of_values, static: tl.constexpr):
    """Stores the state that a segment ends with: columns of ``Z`` or of ``M``."""
    index = (sequence * static.segments + segment) * static.heads + head
    if of_values:
        store_state(ends, index, held, cols, static)
    else:
        rows = tl.arange(0, static.block_h)
        inside = (rows < static.width)[:, None] & (cols < static.width)[None, :]
        base = matrices + index.to(tl.int64) * (static.width * static.width)
        tl.store(base + rows[:, None] * static.width + cols[None, :], held, mask=inside)


@triton.jit
def starts_kernel(initial_state, matrices, ends, starts, static: tl.constexpr):
    """One program per tile of columns, head and sequence."""
    tile = tl.program_id(0) % static.tiles
    head = tl.program_id(0) // static.tiles % static.heads
    sequence = tl.program_id(0) // (static.tiles * static.heads)
    cols = tile * static.block_v + tl.arange(0, static.block_v)
    rows = tl.arange(0, static.block_h)
    held = tl.full([static.block_h, static.block_v], 0, tl.float32)
    if initial_state is not None:
        held = load_state(initial_state, sequence * static.heads + head, cols, static)
    store_state(starts, sequence * static.segments * static.heads + head, held, cols, static)
    inside = (rows < static.width)[:, None] & (rows < static.width)[None, :]
    for segment in tl.range(0, static.segments - 1):
        index = (sequence * static.segments + segment) * static.heads + head
        base = matrices + index.to(tl.int64) * (static.width * static.width)
        matrix = tl.load(base + rows[:, None] * static.width + rows[None, :], mask=inside, other=0.0)
        held = tl.dot(matrix, held, load_state(ends, index, cols, static), input_precision="tf32x3")
        store_state(starts, index + static.heads, held, cols, static)
