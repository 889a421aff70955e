"""States of a head: some of their columns, and the chunks that carry them."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl


@triton.jit
def chunks_of(begin, end, segment, static: tl.constexpr):
    """The first chunk of a segment, and the end of its chunks."""
    chunks = (end - begin + static.chunk - 1) // static.chunk
    if static.segments == 1:
        return begin * 0, chunks
    else:
        each = (chunks + static.segments - 1) // static.segments
        return tl.minimum(segment * each, chunks), tl.minimum(segment * each + each, chunks)


@triton.jit
def load_state(states, index, cols, static: tl.constexpr):
    """Some columns of one state in float32."""
    return load_some(states, index, tl.arange(0, static.block_h), cols, static).to(tl.float32)


@triton.jit
def load_some(states, index, rows, cols, static: tl.constexpr):
    """Some rows and columns of one state, in its dtype."""
    inside = (rows < static.width)[:, None] & (cols < static.v_width)[None, :]
    base = states + index.to(tl.int64) * (static.width * static.v_width)
    return tl.load(base + rows[:, None] * static.v_width + cols[None, :], mask=inside, other=0.0)


@triton.jit
def store_state(states, index, values, cols, static: tl.constexpr):
    """Stores some columns of one state."""
    rows = tl.arange(0, static.block_h)
    inside = (rows < static.width)[:, None] & (cols < static.v_width)[None, :]
    base = states + index.to(tl.int64) * (static.width * static.v_width)
    offsets = rows[:, None] * static.v_width + cols[None, :]
    tl.store(base + offsets, values.to(states.dtype.element_ty), mask=inside)
