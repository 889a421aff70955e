"""Device code that makes queries float16, for products with codes that were widened to float16.

That is the one conversion from float8 that Hopper has, and float16 holds every code. A row of queries is divided by a
power of two, so that its elements fit, and its logits are multiplied with it.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from attn_tune.kernels.lang.gluon.names import synchronize, viewed_as
from attn_tune.kernels.ragged_paged.triton_hopper.config import WARPS

_WARPS = gl.constexpr(WARPS)
# Between these a row's largest element has a power of two, and that power an inverse, that are normal numbers.
_SMALLEST, _LARGEST = gl.constexpr(1e-30), gl.constexpr(1e38)
# The exponent's bits of a float32, and twice that of one: what a power of two and its inverse add up to.
_EXPONENT, _TWO_EXPONENTS = gl.constexpr(0x7F800000), gl.constexpr(0x7F000000)


@gluon.constexpr_function
def row_layout(width):
    """Threads of a warp side by side on rows of 16-bit numbers, 16 bytes each."""
    lanes = min(32, width // 8)
    return gl.BlockedLayout([1, 8], [32 // lanes, lanes], [_WARPS.value, 1], [1, 0])


@gluon.jit
def as_float16(memory):
    """The same bytes of shared memory as float16."""
    return viewed_as(memory, gl.float16, memory.shape, memory.layout)


@gluon.jit
def make_queries_float16(slot, scale, buffers, plan: gl.constexpr, layouts: gl.constexpr):
    """Makes the queries of a slot float16 in place.

    Args:
      scale: the factor of the codes of keys. Its sign goes to the queries.

    Returns:
      What multiplies the product of each row: positive, or NaN as the scale may be.
    """
    LAYOUT: gl.constexpr = row_layout(plan.block_h)
    tile = slot * plan.q_stride
    x = buffers.q.index(tile).load(LAYOUT).to(gl.float32)
    largest = gl.minimum(gl.maximum(gl.max(gl.abs(x), 1), _SMALLEST), _LARGEST)
    bits = largest.to(gl.int32, bitcast=True) & _EXPONENT
    inverse = (_TWO_EXPONENTS - bits).to(gl.float32, bitcast=True) * gl.where(scale < 0, -1.0, 1.0)
    buffers.float16_q.index(tile).store((x * inverse[:, None]).to(gl.float16))
    fence_async_shared()
    synchronize()
    factor = bits.to(gl.float32, bitcast=True) * gl.abs(scale) * plan.row_scale
    # A product with minus infinity must be that.
    factor = gl.where(factor < _SMALLEST, _SMALLEST, factor)
    return gl.convert_layout(factor, gl.SliceLayout(1, layouts.logits))
