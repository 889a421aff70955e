"""What validation found of one trial, as rows that trials share."""

import hashlib
import math
from collections.abc import Iterable

from attn_tune.schema import OutputError, canonical_json

DIGEST_BYTES = 8
# (output, error, allowed); None is NaN.
type ErrorRow = tuple[str, float | None, float | None]


def error_rows(errors: Iterable[OutputError]) -> tuple[ErrorRow, ...]:
    """The errors of a trial as they are stored."""
    return tuple((e.output, _nan_to_none(e.error), _nan_to_none(e.allowed)) for e in errors)


def verification_digest(rows: Iterable[ErrorRow]) -> bytes:
    """Names the errors, bit for bit."""
    exact = [[output, *(x if x is None else x.hex() for x in numbers)] for output, *numbers in rows]
    return hashlib.blake2b(canonical_json(exact).encode(), digest_size=16).digest()[:DIGEST_BYTES]


def is_right(rows: Iterable[ErrorRow]) -> bool:
    """True when every output is within what is allowed of it."""
    return all(
        OutputError(output=output, error=number(error), allowed=number(allowed)).ratio <= 1
        for output, error, allowed in rows
    )


def number(value: float | None) -> float:
    """A stored number; NULL is NaN."""
    return math.nan if value is None else value


def _nan_to_none(value: float) -> float | None:
    return None if math.isnan(value) else value
