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


# The same of units of 16 bits, two neighbouring codes each: $1 has two units, $0 becomes the first code of both, or the
# second one.
_FLOAT8_UNITS = tl.constexpr(
    tuple(
        "{ .reg .b32 t; .reg .b16 first, second; prmt.b32 t, $1, $1, 0x3120; mov.b32 {first, second}, t;"
        f" cvt.rn.f16x2.e4m3x2 $0, {half}; }}"
        for half in ("first", "second")
    )
)
_INT8_UNITS = tl.constexpr(
    tuple(
        "{ .reg .b32 t, bias; xor.b32 t, $1, 0x80808080; prmt.b32 t, t, 0x64646464, "
        f"{order}; mov.b32 bias, 0x64806480; sub.f16x2 $0, t, bias; }}"
        for order in ("0x4240", "0x4341")
    )
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


@triton.jit
def wide_part(units, code: tl.constexpr, PART: tl.constexpr, PTX: tl.constexpr):
    """The first codes (``PART`` 0) or the second ones (1) of ``units`` of 16 bits, in float16.

    A product that reads rows of units as columns gets them from shared memory as it gets 16-bit numbers, which codes of
    8 bits are not: those pass through shared memory a second time once they are wide.

    Args:
      code: the dtype of a code.
      PTX: false in Triton's interpreter, which has no assembly.
    """
    if PTX:
        asm: tl.constexpr = _INT8_UNITS[PART] if code == tl.int8 else _FLOAT8_UNITS[PART]
        result = tl.inline_asm_elementwise(asm, "=r,r", [units], dtype=tl.float16, is_pure=True, pack=2)
    else:
        result = (units >> (8 * PART)).to(tl.int8).to(code, bitcast=True).to(tl.float16)
    return result
