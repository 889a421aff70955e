"""The inverse of a triangular matrix of a chunk, on tensor cores."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl


@triton.jit
def inverse(a, static: tl.constexpr, PRECISION: tl.constexpr):
    """The inverse of I + a, with a strictly lower triangular, from blocks of one row by doubling.

    It grows no larger than the result. A power series would: of equal keys its terms are binomials.

    Args:
      PRECISION: of products. One pass of tf32 is enough where what it is multiplied with is rounded to bfloat16, and
        loses more than a rounding to float16 does.
    """
    blocks: tl.constexpr = static.chunk // 16
    row = tl.arange(0, 16)[None, :, None]
    col = tl.arange(0, 16)[None, None, :]
    small = diagonal(a, blocks, 16, 0)
    x = tl.where(row == col, 1.0, 0.0) - tl.where(row // 2 == col // 2, small, 0.0)
    x = doubled(x, small, 2, blocks, PRECISION)
    x = doubled(x, small, 4, blocks, PRECISION)
    x = doubled(x, small, 8, blocks, PRECISION)
    if blocks >= 2:
        x = joined(x, a, blocks // 2, 16, PRECISION)
    if blocks >= 4:
        x = joined(x, a, blocks // 4, 32, PRECISION)
    return tl.reshape(x, [static.chunk, static.chunk])


@triton.jit
def doubled(x, a, half: tl.constexpr, blocks: tl.constexpr, PRECISION: tl.constexpr):
    """In each block of 16 the inverses of blocks of ``2 half`` rows, from those of ``half`` rows."""
    row = tl.arange(0, 16)[None, :, None]
    col = tl.arange(0, 16)[None, None, :]
    below = tl.where((row // (2 * half) == col // (2 * half)) & (row // half != col // half), a, 0.0)
    return x - times(x, times(below, x, blocks, PRECISION), blocks, PRECISION)


@triton.jit
def joined(x, a, pairs: tl.constexpr, half: tl.constexpr, PRECISION: tl.constexpr):
    """The inverses ``[pairs, 2 half, 2 half]`` from those of their halves ``[2 pairs, half, half]``."""
    first, second = halves(x, pairs, half)
    _, below = halves(diagonal(a, 2 * pairs, half, 1), pairs, half)
    below = -times(second, times(below, first, pairs, PRECISION), pairs, PRECISION)
    top = tl.permute(tl.join(first, tl.zeros_like(first)), (0, 1, 3, 2))
    bottom = tl.permute(tl.join(below, second), (0, 1, 3, 2))
    top = tl.reshape(top, [pairs, half, 2 * half])
    bottom = tl.reshape(bottom, [pairs, half, 2 * half])
    return tl.reshape(tl.permute(tl.join(top, bottom), (0, 3, 1, 2)), [pairs, 2 * half, 2 * half])


@triton.jit
def halves(x, pairs: tl.constexpr, half: tl.constexpr):
    """The blocks of even and of odd number."""
    return tl.split(tl.permute(tl.reshape(x, [pairs, 2, half, half]), (0, 2, 3, 1)))


@triton.jit
def diagonal(a, blocks: tl.constexpr, size: tl.constexpr, below: tl.constexpr):
    """The blocks ``[blocks, size, size]`` on the diagonal of a matrix, or those ``below`` it in the block's row."""
    row = tl.arange(0, blocks)[:, None, None, None]
    col = tl.arange(0, blocks)[None, None, :, None]
    return tl.sum(tl.where(row == col + below, tl.reshape(a, [blocks, size, blocks, size]), 0.0), 2)


@triton.jit
def times(a, b, blocks: tl.constexpr, PRECISION: tl.constexpr):
    """The products of blocks in float32."""
    if blocks == 1:
        size: tl.constexpr = a.shape[1]
        flat = tl.dot(tl.reshape(a, [size, size]), tl.reshape(b, [size, size]), input_precision=PRECISION)
        return tl.reshape(flat, [1, size, size])
    else:
        return tl.dot(a, b, input_precision=PRECISION)
