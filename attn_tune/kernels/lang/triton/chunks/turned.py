"""Walks that hold their state turned: columns by rows, so that products take it from registers.

The first operand of a product on a Hopper tensor core may lie in registers, the second is read from shared memory. A
state ``[rows, cols]`` is always the second one: each chunk writes it there, and then its updates, between barriers.
Turned, it and what has the shape of values are first operands, and queries, keys and the matrices of a chunk, which
copies bring to shared memory, second ones. Each warp then holds 16 columns or a multiple.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.chunks.static import load_tokens


@triton.jit
def turn(x, static: tl.constexpr):
    """``x`` with rows and columns exchanged where the walk is turned: from memory to registers, and back."""
    if static.turned:
        return tl.trans(x)
    else:
        return x


@triton.jit
def load_columns(x, start, end, head, cols, whole: tl.constexpr, static: tl.constexpr):
    """Some columns of the values of a chunk, or of what is like them, turned if the walk is; zero from ``end`` on.

    Args:
      whole: no token is at ``end`` or behind it, and no column beyond the width.
    """
    if static.turned:
        # Turned by its addresses, so that a copy to shared memory runs ahead of its use.
        row = tl.arange(0, static.chunk)
        base = x + (start.to(tl.int64) * static.heads + head) * static.v_width
        offsets = row[None, :] * (static.heads * static.v_width) + cols[:, None]
        if whole:
            return tl.load(base + offsets)
        else:
            inside = (start + row < end)[None, :] & (cols < static.v_width)[:, None]
            return tl.load(base + offsets, mask=inside, other=0.0)
    else:
        return load_tokens(x, start, end, head, static.heads, static.v_width, cols, static.chunk, whole)


@triton.jit
def by_token(x, static: tl.constexpr):
    """Numbers of a chunk's tokens, to be multiplied with what has the shape of its values."""
    if static.turned:
        return x[None, :]
    else:
        return x[:, None]


@triton.jit
def by_row(x, static: tl.constexpr):
    """Numbers of a state's rows, to be multiplied with it."""
    return turn(x[:, None], static)


@triton.jit
def product(a, b, acc, static: tl.constexpr):
    """``acc + a b``, where ``b``, ``acc`` and the result are turned if the walk is."""
    if static.turned:
        return tl.dot(b, tl.trans(a), acc, input_precision=static.precision)
    else:
        return tl.dot(a, b, acc, input_precision=static.precision)
