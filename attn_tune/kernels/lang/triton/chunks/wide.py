"""Products of float32 operands as sums of products of 16-bit parts, where the working dtype has 16 bits."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.chunks.static import Static, load_lower
from attn_tune.kernels.lang.triton.chunks.turned import product


def parts_of(static: Static) -> int:
    """The number of arrays of the working dtype that stand for one of float32."""
    return 1 if static.is_wide else 2


@triton.jit
def split(x, dtype: tl.constexpr):
    """``x`` in a dtype, and the rest in it."""
    high = x.to(dtype)
    return high, (x - high.to(tl.float32)).to(dtype)


@triton.jit
def times_wide(a, b, acc, static: tl.constexpr):
    """``acc + a b`` with ``a`` in the working dtype and ``b`` in float32; all but ``a`` may be turned."""
    if static.is_wide:
        return product(a, b, acc, static)
    else:
        high, low = split(b, a.dtype)
        return product(a, high, product(a, low, acc, static), static)


@triton.jit
def times_rounded(a, b, acc, static: tl.constexpr):
    """As ``times_wide``, but for bfloat16, to which ``b`` is rounded. Of float16 less error is allowed."""
    if a.dtype == tl.bfloat16:
        return product(a, b.to(a.dtype), acc, static)
    else:
        return times_wide(a, b, acc, static)


@triton.jit
def solve(solved, index, x, dtype: tl.constexpr, static: tl.constexpr):
    """The product of a chunk's inverse with ``x`` of float32, as ``times_wide``."""
    if static.is_wide:
        return product(load_lower(solved, index, static.chunk), x, None, static)
    else:
        inverse = load_lower(solved, 2 * index, static.chunk)
        rest = load_lower(solved, 2 * index + 1, static.chunk)
        high, low = split(x, dtype)
        acc = product(inverse, low, product(rest, high, None, static), static)
        return product(inverse, high, acc, static)
