"""SQL statements that are made of column names and conditions."""

import functools
import sqlite3
from collections.abc import Mapping
from typing import Any

from attn_tune.schema import Device, Signature, unknown_name


def insert(connection: sqlite3.Connection, table: str, values: Mapping[str, Any], *, new_only: bool = False) -> int:
    """Add a row, with ``new_only`` unless its key is there, and return its rowid."""
    rowid = connection.execute(_insertion(table, tuple(values), new_only), values).lastrowid
    assert rowid is not None
    return rowid


def problem_filters(table: str) -> dict[str, str]:
    """Conditions for ``narrowing`` of rows of ``table`` by problem, kernel and device."""
    devices = "SELECT id FROM device WHERE digest = :device OR variant = :device"
    return {
        "op": f"{table}.op = :op",
        "kernel": f"({table}.kernel = :kernel OR {table}.kernel = {table}.op || '/' || :kernel)",
        "direction": f"{table}.direction = :direction",
        "signature": f"{table}.signature = :signature",
        "device": f"{table}.device_id IN ({devices})",
    }


def narrowing(what: str, conditions: Mapping[str, str], filters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The SQL condition that ``filters`` set together, and its parameters; a filter that is None narrows nothing.

    ``conditions`` are SQL by the filter's name, with a parameter of this name. A signature is compared by its text, a
    device by its digest. ``what`` names the rows in the error.

    Raises:
      UsageError: a filter has no condition.
    """
    for name in filters:
        if name not in conditions:
            raise unknown_name(f"filter of {what}:", name, conditions)
    given = {name: _parameter(value) for name, value in filters.items() if value is not None}
    return " AND ".join(conditions[name] for name in given) or "TRUE", given


def _parameter(value: Any) -> Any:
    if isinstance(value, Signature):
        return value.text
    return value.digest if isinstance(value, Device) else value


@functools.cache
def _insertion(table: str, columns: tuple[str, ...], new_only: bool) -> str:
    parameters = ", ".join(f":{name}" for name in columns)
    verb = "INSERT OR IGNORE" if new_only else "INSERT"
    return f"{verb} INTO {table} ({', '.join(columns)}) VALUES ({parameters})"
