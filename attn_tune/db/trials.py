"""Trials to rows and back.

Exactly, but for the code's digest and the compile time, of which ``programs`` says what stays, and the microseconds of
starts.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attn_tune.db import queries
from attn_tune.db.batches import Batch, BatchWriter, find_batches
from attn_tune.db.catalog import Catalog
from attn_tune.db.compile_facts import facts_text, read_facts
from attn_tune.db.programs import pack_program, unpack_program
from attn_tune.db.samples import decode_samples, encode_samples, whole_median
from attn_tune.schema import (
    Device,
    Environment,
    IntegrityError,
    Measurement,
    Resources,
    Signature,
    Stage,
    Status,
    Trial,
)

PAGE = 500


def add_trial(connection: sqlite3.Connection, catalog: Catalog, run_id: int, trial: Trial) -> int:
    """Writes one trial with its measurement and errors; the caller holds the transaction. Returns its id."""
    batches = BatchWriter(connection, catalog, run_id)
    connection.execute(queries.ADD_TRIAL, _to_row(catalog, batches, trial))
    batches.flush()
    return batches.last_id


def add_trials(
    connection: sqlite3.Connection, catalog: Catalog, run_id: int, trials: Iterable[Trial]
) -> int:
    """Writes many trials; the caller holds the transaction. Returns how many."""
    batches = BatchWriter(connection, catalog, run_id)
    before = batches.last_id
    rows = (_to_row(catalog, batches, trial) for trial in trials)
    connection.executemany(queries.ADD_TRIAL, rows)
    batches.flush()
    return batches.last_id - before


def read_trials(
    connection: sqlite3.Connection, catalog: Catalog, filters: Mapping[str, Any], *, after: int = 0
) -> Iterator[tuple[int, int, Trial]]:
    """``(trial id, run id, trial)`` in the order they were recorded.

    ``filters`` maps names of ``queries.BATCH_FILTERS`` or ``queries.TRIAL_FILTERS`` to values. Rows are read page by
    page, so that a slow consumer holds no read transaction and the write-ahead log can be folded in meanwhile.

    Raises:
      IntegrityError: a row says what no trial can.
    """
    whole = {name: value for name, value in filters.items() if name in queries.BATCH_FILTERS}
    rest = {name: value for name, value in filters.items() if name not in whole}
    while True:
        end = after
        for batch in find_batches(connection, whole, after=after):
            end = max(end, batch.last_id)
            yield from _read_batch(connection, catalog, batch, rest, after)
        # What was recorded while this was read belongs to it, until a look finds nothing new.
        if end == after:
            return
        after = end


def read_measured(
    connection: sqlite3.Connection,
    *,
    kernel: str,
    direction: str,
    signature: Signature,
    device: Device,
    environment: Environment,
    allow_nondeterministic: bool = False,
) -> dict[tuple[str, str], Status]:
    """``(part, config digest) -> status`` of what an equal device and environment has already tried.

    With ``allow_nondeterministic`` a config that was refused because its bits differ was not. Software that cannot be
    named never equals itself: without a source hash nothing counts as tried.
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
    found: dict[tuple[str, str], Status] = {}
    for part, digest, status, repeatable in connection.execute(queries.MEASURED, values):
        found[part, digest] = Status(status)
        if allow_nondeterministic and status == Status.UNSUPPORTED and repeatable == 0:
            del found[part, digest]
    return found


def _to_row(catalog: Catalog, batches: BatchWriter, trial: Trial) -> tuple:
    config_id = catalog.config_id(trial.kernel, trial.direction, trial.part, trial.config)
    outcome_id = catalog.outcome_id(trial)
    catalog.note_conditions(trial)
    verification_id = catalog.verification_id(trial.errors)
    resources_id = catalog.resources_id(trial.resources, facts_text(trial))
    median = samples = None
    if trial.measurement is not None:
        taken = trial.measurement.samples_ns
        median = whole_median(taken)
        samples = encode_samples(taken, median)
    trial_id, after_ms = batches.add(trial)
    return (
        trial_id,
        config_id,
        outcome_id,
        verification_id,
        resources_id,
        after_ms,
        median,
        pack_program(trial.resources.code_digest, trial.compile_ms),
        samples,
    )


def _read_batch(
    connection: sqlite3.Connection,
    catalog: Catalog,
    batch: Batch,
    filters: Mapping[str, Any],
    after: int,
) -> Iterator[tuple[int, int, Trial]]:
    narrowing = [queries.TRIAL_FILTERS[name] for name in filters]
    sql = queries.TRIALS_PAGE.format(filters=" AND ".join(narrowing) or "TRUE")
    after = max(after, batch.first_id - 1)
    while True:
        values = {**filters, "after": after, "last": batch.last_id, "page": PAGE}
        rows = connection.execute(sql, values).fetchall()
        for row in rows:
            trial = _checked(catalog, batch, catalog.kernel(batch.kernel_id), row)
            yield row["id"], batch.run_id, trial
        if len(rows) < PAGE:
            return
        after = rows[-1]["id"]


def _checked(catalog: Catalog, batch: Batch, kernel: str, row: sqlite3.Row) -> Trial:
    try:
        return _to_trial(catalog, batch, kernel, row)
    except (ValueError, TypeError, OverflowError) as error:
        raise IntegrityError(f"trial {row['id']} cannot be: {error}") from error


def _to_trial(catalog: Catalog, batch: Batch, kernel: str, row: sqlite3.Row) -> Trial:
    measurement = None
    code_digest, compile_ms = unpack_program(row["program"])
    if row["samples"] is not None:
        measurement = Measurement(
            samples_ns=decode_samples(row["samples"], row["median_ns"]),
            protocol=catalog.protocol(row["protocol_id"]),
            round_id=row["round_id"],
        )
    return Trial(
        kernel=kernel,
        direction=batch.direction,
        signature=catalog.signature(batch.signature_id),
        device=catalog.device(batch.device_id, batch.evidence_id),
        environment=catalog.environment(batch.environment_id),
        config=json.loads(row["config_body"]),
        status=Status(row["status"]),
        part=batch.part,
        stage=Stage(row["stage"]),
        reason=row["reason"] or "",
        errors=catalog.errors(row["verification_id"]),
        measurement=measurement,
        resources=Resources(
            shared_bytes=row["shared_bytes"],
            registers=row["registers"],
            spill_bytes=row["spill_bytes"],
            code_digest=code_digest,
        ),
        conditions=catalog.conditions(measurement.round_id) if measurement else None,
        **read_facts(row["facts"]),
        repeatable=None if row["repeatable"] is None else bool(row["repeatable"]),
        features=row["features"],
        compile_ms=compile_ms,
        is_heuristic=bool(row["is_heuristic"]),
        started_us=batch.started_us + 1000 * row["started_after_ms"],
    )
