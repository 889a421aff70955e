"""Rows that trials refer to: devices, environments, signatures. Each is written once, and read back once."""

import functools
import json
import sqlite3
from dataclasses import asdict

from attn_tune.db.store.sql import insert
from attn_tune.schema import Device, Environment, IntegrityError, Signature, canonical_json

_FIND_DEVICE = "SELECT id FROM device WHERE digest = :digest AND evidence = :evidence"


class References:
    """Finds or adds rows inside the caller's transaction, and reads them back as the schema's types."""

    def __init__(self, connection: sqlite3.Connection):
        self._connection = connection
        # Rows never change and keys are never given twice, so what was read once stays true.
        self.device = functools.cache(self._read_device)
        self.environment = functools.cache(self._read_environment)
        self.signature = functools.cache(self._read_signature)

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
        """The text of ``signature``, whose row is there from now on."""
        values = {
            "op": signature.op,
            "version": signature.version,
            "text": signature.text,
            # In declared order, which canonical JSON would lose.
            "fields": json.dumps(dict(signature.items), separators=(",", ":")),
        }
        insert(self._connection, "signature", values, new_only=True)
        return signature.text

    def _read_device(self, device_id: int) -> Device:
        row = self._row("device", "id", device_id)
        evidence = json.loads(row.pop("evidence"))
        del row["id"], row["digest"]
        return Device(**row, evidence=tuple((name, value) for name, value in evidence))

    def _read_environment(self, digest: str) -> Environment:
        row = self._row("environment", "digest", digest)
        del row["digest"]
        return Environment(**row)

    def _read_signature(self, text: str) -> Signature:
        row = self._row("signature", "text", text)
        return Signature(row["op"], row["version"], tuple(json.loads(row["fields"]).items()))

    def _row(self, table: str, key: str, value: int | str) -> dict:
        row = self._connection.execute(f"SELECT * FROM {table} WHERE {key} = ?", (value,)).fetchone()
        if row is None:
            raise IntegrityError(f"there is no {table} {value!r}, though other rows name it")
        return dict(row)
