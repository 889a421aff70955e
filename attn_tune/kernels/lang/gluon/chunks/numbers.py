"""Device code that reads the numbers that a launch before a walk made of each token."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attn_tune.kernels.lang.gluon.chunks import CHUNK, NUMBERS, WARPS
from attn_tune.kernels.lang.gluon.device import load_scalar
from attn_tune.kernels.lang.gluon.names import viewed

_CHUNK = gl.constexpr(CHUNK)
_NUMBERS = gl.constexpr(NUMBERS)
_WARPS = gl.constexpr(WARPS)
# As one copy brings them, and as they are read.
COPIED = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2))
_PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, order=[0]))


@gluon.jit
def numbers_of(WHICH: gl.constexpr, stage, numbers, LAYOUT: gl.constexpr, plan: gl.constexpr):
    """One of the numbers of each token of the chunk in a stage."""
    ROWS: gl.constexpr = plan.stages * _NUMBERS
    return viewed(numbers, [ROWS, _CHUNK], _PLAIN).index(stage * _NUMBERS + WHICH).load(LAYOUT)


@gluon.jit
def last_number(WHICH: gl.constexpr, stage, numbers, plan: gl.constexpr):
    """That of the chunk's last token."""
    COUNT: gl.constexpr = plan.stages * _NUMBERS * _CHUNK
    each = viewed(numbers, [COUNT, 1], _PLAIN)
    return load_scalar(each.index((stage * _NUMBERS + WHICH) * _CHUNK + _CHUNK - 1), _WARPS)
