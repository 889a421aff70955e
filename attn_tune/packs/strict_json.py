"""JSON that has one meaning, read from bytes."""

import json
from typing import Any, TypeGuard

from attn_tune.schema.errors import IntegrityError


def parse_json(data: bytes | str, name: str) -> Any:
    """The value of UTF-8 JSON. Values that JSON readers disagree about are refused. ``name`` names the data in errors.

    Raises:
      IntegrityError: not UTF-8, not JSON, a duplicate key, NaN or an infinity, a number out of range, nesting without
        end.
    """
    try:
        return _DECODER.decode(data if isinstance(data, str) else data.decode())
    except UnicodeDecodeError as error:
        raise IntegrityError(f"{name} is not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise IntegrityError(f"{name} is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except _RefusedError as error:
        raise IntegrityError(f"{name}: {error}") from None
    except ValueError:
        # The only other one: Python does not convert thousands of digits.
        raise IntegrityError(f"{name} holds a number with too many digits") from None
    except RecursionError:
        raise IntegrityError(f"{name} is nested too deeply") from None


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether ``value`` is a JSON list."""
    return isinstance(value, list)


class _RefusedError(Exception):
    """JSON that parses but has no single meaning."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _RefusedError(f"the key {twice[:100]!r} appears twice in one object")
    return found


def _constant(text: str) -> Any:
    raise _RefusedError(f"{text} is not a number that can be stored")


def _number(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _RefusedError(f"the number {text[:24]} is out of range")
    return value


# One decoder for all: json.loads with options builds a new one for each call.
_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_number)
