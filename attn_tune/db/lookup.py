"""Single decisions, looked up again and again."""

import sqlite3
from collections.abc import Mapping
from typing import Any

from attn_tune.db import decision_queries
from attn_tune.db.catalog import Catalog
from attn_tune.db.decision_table import Key, read_config, to_decision
from attn_tune.schema import Decision

# Of what was looked up, so many are kept.
_MOST = 10_000


class Lookup:
    """The decisions of one connection by key; each is read once for as long as the file stays as it is."""

    def __init__(self, connection: sqlite3.Connection, catalog: Catalog):
        self._connection, self._catalog = connection, catalog
        # Kept, and without names of columns: a cursor and a row with names take as long as the row.
        self._cursor = connection.cursor()
        self._cursor.row_factory = None
        self._seen = (-1, -1)
        # The fields of a decision and the JSON of its config, of which every caller gets a copy.
        self._known: dict[Key, tuple[Mapping[str, Any], str] | None] = {}

    def find(self, key: Key) -> Decision | None:
        """The decision of one (signature id, direction, device id, rank), None without one."""
        # The version changes with every commit of another connection, the changes with everything done by this one.
        (version,) = self._cursor.execute(decision_queries.DATA_VERSION).fetchone()
        seen = (version, self._connection.total_changes)
        if seen != self._seen or len(self._known) > _MOST:
            self._known.clear()
            self._seen = seen
        elif key in self._known:
            known = self._known[key]
            return known and Decision.from_fields({**known[0], "config": read_config(known[1])})
        # The key is unique, so fetching its row ends the statement, and with it the read transaction.
        values = self._cursor.execute(decision_queries.ONE_DECISION, key).fetchone()
        if values is None:
            self._known[key] = None
            return None
        kernel, body = self._catalog.config(values[0])
        decision = to_decision(self._catalog, key, kernel, body, values)
        self._known[key] = dict(vars(decision)), body
        return decision
