"""The tables and views of a lab database in words, from the comments that its schema carries."""

import contextlib
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from attn_tune.db.store.schema import TABLES, VIEWS


@dataclass(frozen=True, kw_only=True)
class Relation:
    """A table or a view.

    Attributes:
      name: its name.
      kind: ``"table"`` or ``"view"``.
      about: a sentence about it.
      columns: a sentence about each column, in their order.
    """

    name: str
    kind: str
    about: str
    columns: Mapping[str, str]


def relations() -> tuple[Relation, ...]:
    """All of them: the views, then the trials, then what they refer to."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for statement in (*TABLES, *(f"CREATE VIEW {name} AS {query}" for name, query in VIEWS.items())):
            connection.execute(statement)
        found = connection.execute(
            "SELECT name, type, sql FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%' "
            "ORDER BY type = 'table', name <> 'trial', rowid"
        ).fetchall()
        columns = {name: [row[1] for row in connection.execute(f"PRAGMA table_info({name})")] for name, _, _ in found}
    own: dict[str, dict[str, str]] = {}
    for name, _, sql in found:
        lines = [line.split(" -- ", 1) for line in sql.splitlines()[1:] if " -- " in line]
        own[name] = {declared.rpartition(" AS ")[2].split()[0].rstrip(","): says for declared, says in lines}
    made = []
    for name, kind, sql in found:
        # A column of a view without a comment is that of its table.
        source = re.findall(r"FROM (\w+)", sql)[-1] if kind == "view" else name
        comments = own[source] | own[name]
        about = re.findall("-- (.*)", sql)[0]
        made.append(Relation(name=name, kind=kind, about=about, columns={c: comments[c] for c in columns[name]}))
    return tuple(made)
