"""The rows that trials refer to: devices, environments, kernels, signatures, configs, outcomes, texts and more.

Each is written once and found again by what it says; a trial then costs one row.
"""

import functools
import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from attn_tune.db import catalog_queries
from attn_tune.db.findings import worst_ratio
from attn_tune.db.rounds import ADD_ROUND, GET_ROUND, from_row, to_row
from attn_tune.db.verifications import (
    ErrorRow,
    error_rows,
    is_right,
    number,
    verification_digest,
)
from attn_tune.schema import (
    Device,
    Environment,
    IntegrityError,
    OutputError,
    Protocol,
    Resources,
    Signature,
    Trial,
    UsageError,
    canonical_json,
    config_to_json,
    digest_text,
)
from attn_tune.schema.conditions import Conditions
from attn_tune.schema.trial import main_round


class Catalog:
    """Finds or adds rows inside the caller's transaction, and reads them back as the schema's types.

    Ids are remembered. Call ``forget`` after a rollback: it may have taken new rows away.
    """

    def __init__(self, connection: sqlite3.Connection):
        self._connection = connection
        self._ids: dict[tuple, int] = {}
        # Rows never change, so what was read once stays true.
        self.device = functools.cache(self._get_device)
        self.environment = functools.cache(self._get_environment)
        self.signature = functools.cache(self._get_signature)
        self.errors = functools.cache(self._get_errors)
        self.protocol = functools.cache(self._get_protocol)
        self.config = functools.lru_cache(100_000)(self._get_config)
        self.config_data = functools.lru_cache(100_000)(self._get_config_data)
        self.worst_error = functools.lru_cache(10_000)(self._get_worst_error)
        self.kernel = functools.cache(self._get_kernel)
        self.software = functools.cache(
            lambda environment_id: self.environment(environment_id).digest
        )
        self._round = functools.lru_cache(1000)(self._get_round)
        self._known: dict[Signature | Device, int] = {}

    def forget(self) -> None:
        """Drops the remembered ids."""
        self._ids.clear()
        self._known.clear()

    def device_id(self, device: Device) -> int:
        """The id of the device's identity; its evidence is apart."""
        return self._id(("device", device.digest), self._add_device, device)

    def evidence_id(self, device: Device) -> int:
        """The id of what is recorded about the device but does not identify it."""
        body = canonical_json([list(pair) for pair in device.evidence])
        return self._simple(
            catalog_queries.FIND_EVIDENCE,
            catalog_queries.ADD_EVIDENCE,
            (digest_text(body),),
            (body,),
        )

    def environment_id(self, environment: Environment) -> int:
        """The id of an environment."""
        return self._id(("environment", environment.digest), self._add_environment, environment)

    def kernel_id(self, kernel: str) -> int:
        """The id of the kernel called ``"op/name"``.

        Raises:
          UsageError: the name has another form.
        """
        op, _, name = kernel.partition("/")
        if not op or not name:
            raise UsageError(f"a kernel is called op/name, not {kernel!r}")
        return self._simple(catalog_queries.FIND_KERNEL, catalog_queries.ADD_KERNEL, (op, name))

    def signature_id(self, signature: Signature) -> int:
        """The id of a signature; its fields become rows that SQL can read."""
        return self._id(("signature", signature), self._add_signature, signature)

    def config_id(self, kernel: str, direction: str, part: str, config: Mapping[str, Any]) -> int:
        """The id of a config of one part of one direction of a kernel."""
        body = config_to_json(config)
        known = (kernel, direction, part, body)
        if known not in self._ids:
            key = (self.kernel_id(kernel), direction, part, digest_text(body))
            self._ids[known] = self._simple(
                catalog_queries.FIND_CONFIG, catalog_queries.ADD_CONFIG, key, (body,)
            )
        return self._ids[known]

    def protocol_id(self, protocol: Protocol) -> int:
        """The id of a measurement protocol."""
        key = (
            protocol.timer,
            protocol.warmup,
            int(protocol.flush_l2),
            protocol.calls_per_sample,
            int(protocol.interleaved),
        )
        return self._simple(catalog_queries.FIND_PROTOCOL, catalog_queries.ADD_PROTOCOL, key)

    def text_id(self, text: str) -> int | None:
        """The id of a long text, None for an empty one."""
        if not text:
            return None
        return self._simple(
            catalog_queries.FIND_TEXT, catalog_queries.ADD_TEXT, (digest_text(text),), (text,)
        )

    def find_signature(self, signature: Signature) -> int | None:
        """The id of a signature that is stored, else None."""
        return self._find(signature, catalog_queries.FIND_SIGNATURE)

    def find_device(self, device: Device) -> int | None:
        """The id of a device that is stored, else None."""
        return self._find(device, catalog_queries.FIND_DEVICE)

    def _find(self, value: Signature | Device, sql: str) -> int | None:
        # Digests take longer than all the rest of a lookup.
        found = self._known.get(value)
        if found is None:
            row = self._connection.execute(sql, (value.digest,)).fetchone()
            if row is None:
                return None
            found = self._known[value] = row[0]
        return found

    def verification_id(self, errors: Iterable[OutputError]) -> int | None:
        """The id of what validation found; None when nothing was checked."""
        errors = tuple(errors)
        if not errors:
            return None
        # By the errors themselves, too: making rows of them takes longer than finding them again.
        found = self._ids.get(("errors", errors))
        if found is None:
            rows = error_rows(errors)
            found = self._id(("verification", rows), self._add_verification, rows)
            self._ids["errors", errors] = found
        return found

    def resources_id(self, resources: Resources, facts: str) -> int | None:
        """The id of what a program needs and ``facts_text``; its code's digest is apart. None when nothing is known."""
        key = (
            resources.shared_bytes,
            resources.registers,
            resources.spill_bytes,
            self.text_id(facts),
        )
        if key == (None, None, None, None):
            return None
        return self._simple(catalog_queries.FIND_RESOURCES, catalog_queries.ADD_RESOURCES, key)

    def outcome_id(self, trial: Trial) -> int:
        """The id of what became of a trial and how it was timed."""
        measurement = trial.measurement
        protocol = None if measurement is None else measurement.protocol
        round_id = "" if measurement is None else measurement.round_id
        proof = (trial.repeatable, trial.features)
        said = (
            trial.status,
            trial.stage,
            trial.is_heuristic,
            trial.reason,
            protocol,
            round_id,
            *proof,
        )
        if ("outcome", said) not in self._ids:
            key = (
                trial.status.value,
                trial.stage.value,
                int(trial.is_heuristic),
                self.text_id(trial.reason),
                None if protocol is None else self.protocol_id(protocol),
                round_id,
                None if trial.repeatable is None else int(trial.repeatable),
                trial.features,
            )
            self._ids["outcome", said] = self._simple(
                catalog_queries.FIND_OUTCOME, catalog_queries.ADD_OUTCOME, key
            )
        return self._ids["outcome", said]

    def note_conditions(self, trial: Trial) -> None:
        """Stores what the device went through during the round of a final, once a round."""
        if trial.conditions is None or trial.measurement is None:
            return
        name = main_round(trial.measurement.round_id)
        if name and ("round", name) not in self._ids:
            self._insert(ADD_ROUND, to_row(name, trial.conditions))
            self._ids["round", name] = 0

    def conditions(self, round_id: str) -> Conditions | None:
        """What is known of a round."""
        return self._round(main_round(round_id)) if round_id else None

    def _get_round(self, name: str) -> Conditions | None:
        row = self._connection.execute(GET_ROUND, (name,)).fetchone()
        return from_row(row) if row else None

    def _id(self, key: tuple, add: Callable[[Any], int], value: Any) -> int:
        if key not in self._ids:
            self._ids[key] = add(value)
        return self._ids[key]

    def _simple(self, find: str, add: str, key: tuple, rest: tuple = ()) -> int:
        if (find, key) not in self._ids:
            row = self._connection.execute(find, key).fetchone()
            self._ids[find, key] = row[0] if row else self._insert(add, (*key, *rest))
        return self._ids[find, key]

    def _insert(self, sql: str, values: tuple | dict[str, Any]) -> int:
        row_id = self._connection.execute(sql, values).lastrowid
        assert row_id is not None
        return row_id

    def _add_device(self, device: Device) -> int:
        row = self._connection.execute(catalog_queries.FIND_DEVICE, (device.digest,)).fetchone()
        if row:
            return row[0]
        return self._insert(
            catalog_queries.ADD_DEVICE, {"digest": device.digest, **device.identity}
        )

    def _add_environment(self, environment: Environment) -> int:
        row = self._connection.execute(
            catalog_queries.FIND_ENVIRONMENT, (environment.digest,)
        ).fetchone()
        if row:
            return row[0]
        values = {"digest": environment.digest, **asdict(environment)}
        return self._insert(catalog_queries.ADD_ENVIRONMENT, values)

    def _add_signature(self, signature: Signature) -> int:
        row = self._connection.execute(
            catalog_queries.FIND_SIGNATURE, (signature.digest,)
        ).fetchone()
        if row:
            return row[0]
        head = (signature.digest, signature.op, signature.version, signature.text)
        signature_id = self._insert(catalog_queries.ADD_SIGNATURE, head)
        for position, (name, value) in enumerate(signature.items):
            as_int = value if isinstance(value, int) else None
            as_text = value if isinstance(value, str) else None
            self._connection.execute(
                catalog_queries.ADD_SIGNATURE_FIELD, (signature_id, position, name, as_int, as_text)
            )
        return signature_id

    def _add_verification(self, rows: tuple[ErrorRow, ...]) -> int:
        digest = verification_digest(rows)
        row = self._connection.execute(catalog_queries.FIND_VERIFICATION, (digest,)).fetchone()
        if row:
            return row[0]
        verification_id = self._insert(catalog_queries.ADD_VERIFICATION, (digest, is_right(rows)))
        for position, error in enumerate(rows):
            self._connection.execute(
                catalog_queries.ADD_VERIFICATION_ERROR, (verification_id, position, *error)
            )
        return verification_id

    def _get_device(self, device_id: int, evidence_id: int | None = None) -> Device:
        row = dict(self._connection.execute(catalog_queries.GET_DEVICE, (device_id,)).fetchone())
        del row["id"], row["digest"]
        if evidence_id is None:
            return Device(**row)
        body = self._connection.execute(catalog_queries.GET_EVIDENCE, (evidence_id,)).fetchone()[0]
        return Device(**row, evidence=tuple((name, value) for name, value in json.loads(body)))

    def _get_environment(self, environment_id: int) -> Environment:
        row = dict(
            self._connection.execute(catalog_queries.GET_ENVIRONMENT, (environment_id,)).fetchone()
        )
        del row["id"], row["digest"]
        return Environment(**row)

    def _get_signature(self, signature_id: int) -> Signature:
        head = self._connection.execute(catalog_queries.GET_SIGNATURE, (signature_id,)).fetchone()
        fields = self._connection.execute(catalog_queries.GET_SIGNATURE_FIELDS, (signature_id,))
        items = tuple(
            (row["name"], row["text_value"] if row["int_value"] is None else row["int_value"])
            for row in fields
        )
        return Signature(head["op"], head["version"], items)

    def _get_errors(self, verification_id: int | None) -> tuple[OutputError, ...]:
        if verification_id is None:
            return ()
        rows = self._connection.execute(catalog_queries.GET_VERIFICATION_ERRORS, (verification_id,))
        return tuple(
            OutputError(output=output, error=number(error), allowed=number(allowed))
            for output, error, allowed in rows
        )

    def _get_config(self, config_id: int) -> tuple[str, str]:
        return tuple(self._connection.execute(catalog_queries.GET_CONFIG, (config_id,)).fetchone())

    def _get_config_data(self, config_id: int) -> tuple[str, Mapping[str, Any]]:
        """The digest of a config, and the config; it is not to be changed."""
        digest, body = self._connection.execute(
            catalog_queries.GET_CONFIG_DATA, (config_id,)
        ).fetchone()
        return digest, json.loads(body)

    def _get_worst_error(self, verification_id: int | None) -> float | None:
        return worst_ratio(self._get_errors(verification_id))

    def _get_kernel(self, kernel_id: int) -> str:
        row = self._connection.execute(catalog_queries.GET_KERNEL, (kernel_id,)).fetchone()
        if row is None:
            raise IntegrityError(f"there is no kernel {kernel_id}, though trials name it")
        return f"{row['op']}/{row['name']}"

    def _get_protocol(self, protocol_id: int) -> Protocol:
        row = self._connection.execute(catalog_queries.GET_PROTOCOL, (protocol_id,)).fetchone()
        return Protocol(
            timer=row["timer"],
            warmup=row["warmup"],
            flush_l2=bool(row["flush_l2"]),
            calls_per_sample=row["calls_per_sample"],
            interleaved=bool(row["interleaved"]),
        )
