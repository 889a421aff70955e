"""Device code that turns codes of a cache into float16, which holds each of them exactly."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

_FLOAT8 = tl.constexpr(
    "{ .reg .b16 low, high; mov.b32 {low, high}, $2; cvt.rn.f16x2.e4m3x2 $0, low; cvt.rn.f16x2.e4m3x2 $1, high; }"
)
# The code plus 128 in the low bits of 1024.0 is 1152 more than the code.
_INT8 = tl.constexpr(
    "{ .reg .b32 t, low, high, bias; xor.b32 t, $2, 0x80808080; prmt.b32 low, t, 0x64646464, 0x4140;"
    " prmt.b32 high, t, 0x64646464, 0x4342; mov.b32 bias, 0x64806480;"
    " sub.f16x2 $0, low, bias; sub.f16x2 $1, high, bias; }"
)


@triton.jit
def wide(tile, dtype: tl.constexpr, PTX: tl.constexpr, IN_PLACE: tl.constexpr):
    """``tile`` in ``dtype``; codes become float16 by the instructions of sm_89 and later.

    Args:
      PTX: false in Triton's interpreter, which has no assembly.
      IN_PLACE: convert in the layout of the load. Triton moves conversions behind a change of layout otherwise, where
        codes that a product reads along their columns come from shared memory byte by byte.
    """
    if PTX and dtype == tl.float16 and tile.dtype.primitive_bitwidth == 8:
        asm: tl.constexpr = _INT8 if tile.dtype == tl.int8 else _FLOAT8
        result = tl.inline_asm_elementwise(asm, "=r,=r,r", [tile], dtype=tl.float16, is_pure=not IN_PLACE, pack=4)
    else:
        result = tile.to(dtype)
    return result
