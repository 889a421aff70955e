"""JSON as data from outside: one meaning or none. Every failure is an IntegrityError that names the file."""

import json
from typing import Any

from attn_tune.schema.errors import IntegrityError


def parse_json(data: bytes, name: str) -> Any:
    """The value of UTF-8 JSON, refusing what JSON readers disagree about.

    Raises:
      IntegrityError: not UTF-8, not JSON, a duplicate key, NaN or an infinity, a number out of range, nesting without
        end.
    """
    try:
        text = data.decode("utf-8")
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_number,
        )
    except UnicodeDecodeError as error:
        raise IntegrityError(f"{name} is not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise IntegrityError(
            f"{name} is not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from None
    except ValueError:
        # What is left of it: Python's refusal to convert thousands of digits.
        raise IntegrityError(f"{name} holds a number with too many digits") from None
    except RecursionError:
        raise IntegrityError(f"{name} is nested too deeply") from None
    except _RefusedError as error:
        raise IntegrityError(f"{name}: {error}") from None


class _RefusedError(Exception):
    """JSON that parses but has no single meaning."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RefusedError(f"the key {key[:100]!r} appears twice in one object")
            seen.add(key)
    return found


def _refuse_constant(text: str) -> Any:
    raise _RefusedError(f"{text} is not a number that can be stored")


def _number(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _RefusedError(f"the number {text[:24]} is out of range")
    return value
