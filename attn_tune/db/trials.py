"""Trials to rows and back, exactly."""

import json
import math
import sqlite3
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from attn_tune.db import queries
from attn_tune.db.catalog import Catalog
from attn_tune.schema import (
    Device,
    Environment,
    IntegrityError,
    Measurement,
    OutputError,
    Protocol,
    Resources,
    Signature,
    Stage,
    Status,
    Trial,
)

PAGE = 500


def add_trial(connection: sqlite3.Connection, catalog: Catalog, run_id: int, trial: Trial) -> int:
    """Writes one trial with its measurement and errors; the caller holds the transaction. Returns its id."""
    values = {
        "run_id": run_id,
        "signature_id": catalog.signature_id(trial.signature),
        "config_id": catalog.config_id(trial.kernel, trial.direction, trial.part, trial.config),
        "device_id": catalog.device_id(trial.device),
        "evidence_id": catalog.evidence_id(trial.device),
        "environment_id": catalog.environment_id(trial.environment),
        "status": str(trial.status),
        "stage": str(trial.stage),
        "reason_id": catalog.text_id(trial.reason),
        "is_heuristic": int(trial.is_heuristic),
        "shared_bytes": trial.resources.shared_bytes,
        "registers": trial.resources.registers,
        "spill_bytes": trial.resources.spill_bytes,
        "code_digest": trial.resources.code_digest,
        "compile_ms": trial.compile_ms,
        "started_us": trial.started_us,
    }
    trial_id = connection.execute(queries.ADD_TRIAL, values).lastrowid
    assert trial_id is not None
    for position, error in enumerate(trial.errors):
        row = (trial_id, position, error.output, error.error, error.allowed)
        connection.execute(queries.ADD_OUTPUT_ERROR, row)
    if trial.measurement is not None:
        _add_measurement(connection, catalog, trial_id, trial.measurement)
    return trial_id


def read_trials(
    connection: sqlite3.Connection, catalog: Catalog, filters: Mapping[str, Any], *, after: int = 0
) -> Iterator[tuple[int, int, Trial]]:
    """``(trial id, run id, trial)`` in the order they were recorded.

    ``filters`` maps names of ``queries.TRIAL_FILTERS`` to values. Rows are read page by page, so that a slow
    consumer holds no read transaction and the write-ahead log can be folded in meanwhile.

    Raises:
      IntegrityError: a row says what no trial can.
    """
    narrowing = " AND ".join(queries.TRIAL_FILTERS[name] for name in filters) or "TRUE"
    sql = queries.TRIALS_PAGE.format(filters=narrowing)
    while True:
        rows = connection.execute(sql, {**filters, "after": after, "page": PAGE}).fetchall()
        if not rows:
            return
        errors = _read_errors(connection, [row["id"] for row in rows])
        for row in rows:
            try:
                trial = _to_trial(catalog, row, errors[row["id"]])
            except (ValueError, TypeError, struct.error) as error:
                raise IntegrityError(f"trial {row['id']} cannot be: {error}") from error
            yield row["id"], row["run_id"], trial
        after = rows[-1]["id"]


def read_measured(
    connection: sqlite3.Connection,
    *,
    kernel: str,
    direction: str,
    signature: Signature,
    device: Device,
    environment: Environment,
) -> dict[tuple[str, str], Status]:
    """``(part, config digest) -> status`` of what an equal device and environment has already tried.

    Software that cannot be named never equals itself: without a source hash nothing counts as tried.
    """
    if not environment.source_hash:
        return {}
    op, _, name = kernel.partition("/")
    values = {
        "op": op,
        "kernel": name,
        "direction": direction,
        "signature": signature.digest,
        "device": device.digest,
        "environment": environment.digest,
    }
    rows = connection.execute(queries.MEASURED, values)
    return {(row["part"], row["digest"]): Status(row["status"]) for row in rows}


def pack_samples(samples: tuple[int, ...]) -> bytes:
    """Nanoseconds as little-endian 64-bit integers."""
    return struct.pack(f"<{len(samples)}q", *samples)


def unpack_samples(blob: bytes) -> tuple[int, ...]:
    """The inverse of ``pack_samples``."""
    return struct.unpack(f"<{len(blob) // 8}q", blob)


def _add_measurement(
    connection: sqlite3.Connection, catalog: Catalog, trial_id: int, measurement: Measurement
) -> None:
    row = (
        trial_id,
        catalog.protocol_id(measurement.protocol),
        measurement.round_id,
        len(measurement.samples_ns),
        int(measurement.median_ns),
        measurement.min_ns,
        pack_samples(measurement.samples_ns),
    )
    connection.execute(queries.ADD_MEASUREMENT, row)


def _read_errors(
    connection: sqlite3.Connection, trial_ids: list[int]
) -> Mapping[int, list[OutputError]]:
    found = defaultdict(list)
    for row in connection.execute(queries.ERRORS_OF, (json.dumps(trial_ids),)):
        error = OutputError(
            output=row["output"], error=_number(row["error"]), allowed=_number(row["allowed"])
        )
        found[row["trial_id"]].append(error)
    return found


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _to_trial(catalog: Catalog, row: sqlite3.Row, errors: list[OutputError]) -> Trial:
    return Trial(
        kernel=f"{row['op']}/{row['kernel_name']}",
        direction=row["direction"],
        signature=catalog.signature(row["signature_id"]),
        device=catalog.device(row["device_id"], row["evidence_id"]),
        environment=catalog.environment(row["environment_id"]),
        config=json.loads(row["config_body"]),
        status=Status(row["status"]),
        part=row["part"],
        stage=Stage(row["stage"]),
        reason=row["reason"] or "",
        errors=tuple(errors),
        measurement=_to_measurement(row) if row["samples"] is not None else None,
        resources=Resources(
            shared_bytes=row["shared_bytes"],
            registers=row["registers"],
            spill_bytes=row["spill_bytes"],
            code_digest=row["code_digest"],
        ),
        compile_ms=row["compile_ms"],
        is_heuristic=bool(row["is_heuristic"]),
        started_us=row["started_us"],
    )


def _to_measurement(row: sqlite3.Row) -> Measurement:
    return Measurement(
        samples_ns=unpack_samples(row["samples"]),
        protocol=Protocol(
            timer=row["timer"],
            warmup=row["warmup"],
            flush_l2=bool(row["flush_l2"]),
            calls_per_sample=row["calls_per_sample"],
            interleaved=bool(row["interleaved"]),
        ),
        round_id=row["round_id"],
    )
