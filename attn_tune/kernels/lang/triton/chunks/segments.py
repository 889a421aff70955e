"""The states at the start of each segment of a sequence, from what every segment makes of that at its start."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.chunks.states import load_state, store_state
from attn_tune.kernels.lang.triton.chunks.static import Static


def starts_of(
    initial_state: jax.Array | None, matrices: jax.Array, ends: jax.Array, static: Static, name: str
) -> jax.Array:
    """The float32 states at the start of each segment ``[B, segments, N, H, V]``: ``M S + Z`` of that before.

    Args:
      matrices: ``M`` of each segment ``[B, segments, N, H, H]``.
      ends: ``Z`` of each segment ``[B, segments, N, H, V]``.
      name: what profilers show.
    """
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
        name=name,
    )
    return starts


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
