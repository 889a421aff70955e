"""Rows that trials refer to: devices, environments, signatures. Each is written once, and read back once."""

import functools
import json
import sqlite3
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from attn_tune.db.store.rows import NO_ROW, RowError, json_object
from attn_tune.db.store.sql import insert
from attn_tune.ops.registry import find_op, op_names
from attn_tune.schema import Device, Environment, Signature, UsageError, canonical_json

_FIND_DEVICE = "SELECT id FROM device WHERE digest = :digest AND evidence = :evidence"


class References:
    """Finds or adds rows inside the caller's transaction, and reads them back as the schema's types."""

    def __init__(self, connection: sqlite3.Connection):
        self._connection = connection
        # Rows never change and keys are never given twice, so what was read once stays true.
        self.device = functools.cache(functools.partial(self._read, "device", "id", _device))
        self.environment = functools.cache(functools.partial(self._read, "environment", "digest", _environment))
        self.signature = functools.cache(functools.partial(self._read, "signature", "text", _signature))

    def add_device(self, device: Device) -> int:
        """The id of the row of ``device`` and its evidence."""
        evidence = canonical_json([list(pair) for pair in device.evidence])
        values = {**device.identity, "digest": device.digest, "evidence": evidence}
        row = self._connection.execute(_FIND_DEVICE, values).fetchone()
        return row[0] if row else insert(self._connection, "device", values)

    def add_environment(self, environment: Environment) -> str:
        """The digest of ``environment``, whose row is there from now on."""
        values = {**asdict(environment), "digest": environment.digest}
        insert(self._connection, "environment", values, new_only=True)
        return environment.digest

    def add_signature(self, signature: Signature) -> str:
        """The text of ``signature``, whose row is there from now on.

        Raises:
          UsageError: a field has another type than its op says.
        """
        _check_types(signature)
        values = {
            "op": signature.op,
            "version": signature.version,
            "text": signature.text,
            # In declared order, which canonical JSON would lose.
            "fields": json.dumps(dict(signature.items), separators=(",", ":")),
        }
        insert(self._connection, "signature", values, new_only=True)
        return signature.text

    def _read[T](self, table: str, key: str, made_of: Callable[[dict[str, Any]], T], value: int | str) -> T:
        """Read a row, as ``made_of`` makes it of the columns.

        Raises:
          RowError: there is no such row, or it cannot be read.
        """
        row = self._connection.execute(f"SELECT * FROM {table} WHERE {key} = ?", (value,)).fetchone()
        if row is None:
            raise RowError(table, repr(value), "it is not there, though other rows name it")
        try:
            return made_of(dict(row))
        except NO_ROW as error:
            raise RowError(table, repr(value), error) from error


def _device(row: dict[str, Any]) -> Device:
    evidence = json.loads(row.pop("evidence"))
    del row["id"], row["digest"]
    return Device(**row, evidence=tuple((name, value) for name, value in evidence))


def _environment(row: dict[str, Any]) -> Environment:
    del row["digest"]
    return Environment(**row)


def _signature(row: dict[str, Any]) -> Signature:
    signature = Signature(row["op"], row["version"], tuple(json_object(row["fields"]).items()))
    if signature.text != row["text"]:
        raise ValueError(f"its fields are those of {signature.text!r:.200}")
    _check_types(signature)
    return signature


def _check_types(signature: Signature) -> None:
    """Refuse a value of another type than its field has, where the op of this version is installed.

    Raises:
      UsageError: there is one.
    """
    op = find_op(signature.op) if signature.op in op_names() else None
    if op is None or op.version != signature.version:
        return
    # Fields that are not known may come from a newer attn-tune.
    for field in op.fields:
        value = signature.values.get(field.name, field.default)
        if value != field.default and type(value) is not (int if field.is_int else str):
            kind = "an integer" if field.is_int else "a word"
            raise UsageError(f"signature field {field.name}={value!r} of {signature.op} must be {kind}")
