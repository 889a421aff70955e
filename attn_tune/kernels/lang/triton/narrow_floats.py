"""Right bfloat16 and float8 arithmetic in Triton's interpreter.

The interpreter keeps these as unsigned integers, multiplies the integers, and converts from float32 by cutting bits
off, which also turns some NaNs into infinities. Here they are computed in float32 and rounded to nearest, ties to
even, as the hardware does.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np

# Triton's name of the type, and numpy's.
NARROW = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp8e4nv": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8e5": np.dtype(ml_dtypes.float8_e5m2),
}
ARITHMETIC = (
    "binary_op",
    "unary_op",
    "ternary_op",
    "create_fma",
    "create_rsqrt",
    "create_erf",
    "create_dot",
)
CONVERSIONS = ("cast_impl", "create_fp_to_fp")


@contextmanager
def right_narrow_floats() -> Iterator[None]:
    """Repairs the interpreter's one builder; not for two threads at a time."""
    from triton.runtime.interpreter import interpreter_builder as builder

    for name in ARITHMETIC:
        setattr(builder, name, _in_float32(getattr(builder, name)))
    for name in CONVERSIONS:
        setattr(builder, name, _converted(getattr(builder, name)))
    try:
        yield
    finally:
        # The methods of the class show again.
        for name in (*ARITHMETIC, *CONVERSIONS):
            delattr(builder, name)


def _in_float32(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def compute(*arguments: Any) -> Any:
        if not any(_is_narrow(argument) for argument in arguments) or np.where in arguments:
            return method(*arguments)
        result = method(*(_widen(argument) for argument in arguments))
        # A dot accumulates in the type of its third operand; everything else keeps that of its operands.
        like = [argument for argument in arguments if hasattr(argument, "data")][-1]
        if result.data.dtype == np.bool_:
            return type(result)(result.data, like.dtype.scalar)
        return _narrow(result, like.dtype.scalar) if _is_narrow(like) else result

    return compute


def _converted(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def convert(source: Any, to: Any, *rounding: Any) -> Any:
        if to.scalar.name in NARROW:
            wide = _widen(source)
            values = type(source)(wide.data.astype(np.float32), _float32())
            return _narrow(values, to.scalar)
        if _is_narrow(source):
            wide = _widen(source)
            return wide if to.scalar == wide.dtype else method(wide, to, *rounding)
        return method(source, to, *rounding)

    return convert


def _is_narrow(argument: Any) -> bool:
    dtype = getattr(argument, "dtype", None)
    return getattr(getattr(dtype, "scalar", None), "name", None) in NARROW


def _widen(argument: Any) -> Any:
    if not _is_narrow(argument):
        return argument
    values = argument.data.view(NARROW[argument.dtype.scalar.name])
    return type(argument)(values.astype(np.float32), _float32())


def _narrow(handle: Any, to: Any) -> Any:
    dtype, values = NARROW[to.name], np.asarray(handle.data, np.float32)
    if dtype.itemsize == 1:
        # PTX converts to float8 with .satfinite; NaN stays.
        most = np.float32(ml_dtypes.finfo(dtype).max)
        values = np.clip(values, -most, most)
    values = values.astype(dtype)
    return type(handle)(values.view(f"u{values.dtype.itemsize}"), to)


def _float32() -> Any:
    import triton.language as tl

    return tl.float32
