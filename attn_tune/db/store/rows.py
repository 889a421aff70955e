"""Values of columns, and the error of a row that does not hold what its table does."""

import json
import math
from typing import Any

from attn_tune.schema import IntegrityError

# Errors of a row that cannot be read.
NO_ROW = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


class RowError(IntegrityError):
    """A row that cannot be read; ``storage_errors`` adds the path of the file."""

    def __init__(self, table: str, key: object, error: object):
        super().__init__(f"row {key} of {table} cannot be read: {error}")


def json_object(text: str) -> dict[str, Any]:
    """The JSON object in ``text``.

    Raises:
      ValueError, TypeError, RecursionError: it is none, or holds NaN or an infinity.
    """
    found = _DECODER.decode(text)
    if not isinstance(found, dict):
        raise TypeError(f"{text[:80]!r} is no JSON object")
    return found


def json_texts(text: str) -> tuple[str, ...]:
    """The texts of the JSON array in ``text``.

    Raises:
      ValueError, TypeError, RecursionError: it is none, or holds something else.
    """
    found = _DECODER.decode(text)
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise TypeError(f"{text[:80]!r} is no JSON array of texts")
    return tuple(found)


def json_integers(text: str) -> tuple[int, ...]:
    """The integers of the JSON array in ``text``.

    Raises:
      ValueError, TypeError, RecursionError: it is none, or holds another number.
    """
    return tuple(_INTEGERS.decode(text))


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"the number {text} is out of range")
    return value


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no number that can be here")


# ``json.loads`` with options would make a new one for each text.
_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)
_INTEGERS = json.JSONDecoder(parse_float=_refuse, parse_constant=_refuse)
