"""Integers of any type as Python's, and integers of 64 bits as integers of 32."""

import operator
from typing import Any, cast

import numpy as np

from attn_tune.schema.errors import UsageError, shown

_INT32 = np.iinfo(np.int32)
# Windows as long as this hide nothing: kernels add them to positions, in 32 bits.
_ENDLESS = 2**30


def as_integer(given: Any) -> int | None:
    """The Python integer that ``given`` is, also one of numpy; None for a bool, a traced one and what is none."""
    try:
        return None if isinstance(given, bool) else operator.index(given)
    except TypeError:
        return None


def positive_integer(name: str, given: Any) -> int:
    """The Python integer above zero that the argument ``name`` is.

    Raises:
      UsageError: it is something else.
    """
    number = as_integer(given)
    if number is None or number < 1:
        raise UsageError(f"{name} must be a positive integer, got {shown(given)}")
    return number


def window_bound(tokens: int) -> int | None:
    """One side of a window; None, which hides nothing, where it is 2**30 tokens or more."""
    return tokens if tokens < _ENDLESS else None


def saturated(given: Any) -> Any:
    """Integers of int64, uint64 or uint32 as int32, those beyond it as its ends; anything else as it is.

    JAX without its 64-bit mode keeps the lower half, which is another length, page or token.
    """
    if isinstance(given, int) and not isinstance(given, bool):
        return min(max(given, _INT32.min), _INT32.max)
    dtype: Any = getattr(given, "dtype", None)
    if getattr(dtype, "kind", "") not in {"i", "u"} or dtype.itemsize < 4 or dtype == np.int32:
        return given
    lowest, array = max(_INT32.min, np.iinfo(dtype).min), cast(Any, given)
    return array.clip(dtype.type(lowest), dtype.type(_INT32.max)).astype(np.int32)
