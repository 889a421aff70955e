"""SQL statements that are made of column names and conditions."""

import functools
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any


def insert(
    connection: sqlite3.Connection, table: str, values: Mapping[str, Any], *, new_only: bool = False
) -> int:
    """Adds a row, with ``new_only`` unless its key is there, and returns its rowid."""
    rowid = connection.execute(_insertion(table, tuple(values), new_only), values).lastrowid
    assert rowid is not None
    return rowid


def where(conditions: Mapping[str, str], filters: Iterable[str]) -> str:
    """The condition that all of ``filters``, names of ``conditions``, set together."""
    return " AND ".join(conditions[name] for name in filters) or "TRUE"


@functools.cache
def _insertion(table: str, columns: tuple[str, ...], new_only: bool) -> str:
    parameters = ", ".join(f":{name}" for name in columns)
    verb = "INSERT OR IGNORE" if new_only else "INSERT"
    return f"{verb} INTO {table} ({', '.join(columns)}) VALUES ({parameters})"
