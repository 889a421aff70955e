"""One query of a user, which can read and nothing else."""

import re
import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attn_tune.db.store.schema import column_names, relation_names
from attn_tune.schema import UsageError
from attn_tune.schema.errors import near_names

if TYPE_CHECKING:
    import pandas as pd

# Steps of SQLite's machine between two looks for Ctrl-C.
_STEPS = 10_000
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_FIRST_WORD = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*([A-Za-z]*)", re.DOTALL)
_BEGINNINGS = ("SELECT", "WITH", "VALUES", "EXPLAIN")
# Pandas' types by what it finds in a column; one of text and numbers stays as it is.
_DTYPES = {"integer": "Int64", "floating": "Float64", "mixed-integer-float": "Float64", "string": "string"}
# Errors that say something about the file, not about the query.
_OF_THE_FILE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
}


def read_query(
    connection: sqlite3.Connection, sql: str, parameters: Mapping[str, Any], limit: int | None
) -> "pd.DataFrame":
    """The rows of one SELECT, at most ``limit``. Whole numbers stay so beside NULL; times of day are texts.

    SQLite itself is asked for leave before each access, and gets it to read alone.

    Raises:
      UsageError: it is no query, would do more than read, names what is not there, lacks a parameter, or has two
        columns of one name.
      KeyboardInterrupt: Ctrl-C, while SQLite works too.
    """
    word = _FIRST_WORD.match(sql)
    first = word[1].upper() if word else ""
    if first not in _BEGINNINGS:
        raise UsageError(
            f"{first or 'this'} is refused: a query may only read, and begins with {', '.join(_BEGINNINGS)}"
        )
    for name in parameters:
        if not re.search(rf"[:@$]{re.escape(name)}\b", sql):
            raise UsageError(f"the query has no parameter :{name}")
    connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY)
    connection.set_progress_handler(lambda: 0, _STEPS)
    try:
        cursor = connection.execute(sql, parameters)
        names = [column[0] for column in cursor.description]
        rows = cursor.fetchall() if limit is None else cursor.fetchmany(limit)
        cursor.close()
    except (sqlite3.Error, OverflowError) as error:
        raise _translated(error) from None
    finally:
        connection.set_progress_handler(None, 0)
        connection.set_authorizer(None)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two columns are called {twice!r}; tell them apart with AS")
    import pandas as pd

    found = pd.DataFrame([tuple(row) for row in rows], columns=names, dtype=object)
    kinds = {name: _DTYPES.get(pd.api.types.infer_dtype(found[name], skipna=True)) for name in found}
    return found.astype({name: kind for name, kind in kinds.items() if kind})


def _translated(error: Exception) -> BaseException:
    """The error of the query as one of a user; one of the file stays SQLite's."""
    code = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
    if code == sqlite3.SQLITE_INTERRUPT:  # by the signal that the progress handler let through
        return KeyboardInterrupt()
    if isinstance(error, OverflowError):
        return UsageError("the value of a parameter is an integer beyond 64 bits")
    if code in _OF_THE_FILE:
        return error
    if "Could not decode" in str(error):
        return UsageError("the query makes a text that is not UTF-8; ask for its hex()")
    if code == sqlite3.SQLITE_AUTH or "not authorized" in str(error):
        return UsageError("the query may only read: what writes, PRAGMA, ATTACH and extensions are refused")
    text = str(error)
    if missing := re.fullmatch(r"no such (table|column): (?:\w+\.)?(.*)", text):
        known = relation_names() if missing[1] == "table" else column_names()
        # A column of another relation is no other name.
        hint = near_names(missing[2], [name for name in known if name != missing[2]])
        text += f"; {hint}" if hint else "; 'attn-tune lab query --list' names them"
    if binding := re.search(r"for binding (?:parameter )?:?(\w+)", text):
        text = f"it needs a value: -p {binding[1]}=VALUE"
    return UsageError(f"the query cannot be run: {text}")
