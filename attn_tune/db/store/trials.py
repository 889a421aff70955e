"""Trials to rows and back, exactly."""

import functools
import json
import math
import sqlite3
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from attn_tune.db.store.references import References
from attn_tune.db.store.rows import NO_ROW, RowError, json_integers, json_object
from attn_tune.db.store.sql import insert, narrowing, problem_filters
from attn_tune.db.store.times import now_us, time_text, time_us
from attn_tune.schema import (
    AttnTuneError,
    Measurement,
    OutputError,
    Prediction,
    Protocol,
    Resources,
    Shortage,
    Stage,
    Status,
    StorageError,
    Trial,
    UsageError,
    canonical_json,
    config_to_json,
    digest_text,
)
from attn_tune.schema.conditions import Conditions
from attn_tune.schema.trial import lacks_a_library

PAGE = 500

# Columns that have the name and the value of a field of ``Trial``.
_PLAIN = (
    "kernel",
    "direction",
    "part",
    "point",
    "reason",
    "features",
    "compile_ms",
    "prove_ms",
    "run_ms",
)
_RESOURCES = ("shared_bytes", "registers", "spill_bytes", "code_digest")
_BEAT = """
UPDATE run SET heartbeat = :now, trials = trials + :count WHERE id = :run AND status = 'running'
"""
FILTERS = problem_filters("trial") | {
    "run": "trial.run_id = :run",
    "status": "trial.status = :status",
    "config_digest": "trial.config_digest = :config_digest",
    "environment": "trial.environment = :environment",
}
_MEASURED = """
SELECT part, config_digest, status, repeatable, id, reason FROM trial
WHERE signature = :signature AND direction = :direction AND kernel = :kernel AND environment = :environment
  AND device_id IN (SELECT id FROM device WHERE digest = :device)
ORDER BY id
"""


def beat(connection: sqlite3.Connection, run_id: int, count: int = 0) -> None:
    """Notes that a run lives, and that it recorded ``count`` more trials."""
    connection.execute(_BEAT, {"run": run_id, "now": time_text(now_us()), "count": count})


def add_trials(
    connection: sqlite3.Connection, references: References, run_id: int, trials: Iterable[Trial]
) -> list[int]:
    """Writes trials and the sign of life of their run; the caller holds the transaction. Returns their ids.

    Raises:
      StorageError: there is no such run.
      UsageError: a trial holds what cannot be read back.
    """
    row = connection.execute("SELECT trials FROM run WHERE id = ?", (run_id,)).fetchone()
    if row is None:
        raise StorageError(f"run {run_id} is not in the database; begin a new one")
    ids: list[int] = []
    for number, trial in enumerate(trials, row[0] + 1):
        try:
            values = {"run_id": run_id, "number": number, **_to_row(references, trial)}
            ids.append(insert(connection, "trial", values))
        except (AttnTuneError, UnicodeEncodeError):
            raise
        except (*NO_ROW, sqlite3.IntegrityError, sqlite3.ProgrammingError) as error:
            raise UsageError(f"a trial of {trial.kernel} cannot be stored: {error}") from error
    beat(connection, run_id, len(ids))
    return ids


def read_trials(
    connection: sqlite3.Connection,
    references: References,
    filters: Mapping[str, Any],
) -> Iterator[tuple[int, Trial]]:
    """``(run id, trial)`` in the order of recording.

    Rows are read page by page, so that a slow consumer holds no read transaction and the write-ahead log can be folded
    in meanwhile.

    Raises:
      RowError: a row is no trial.
    """
    condition, values = narrowing("trials", FILTERS, filters)
    sql = f"SELECT * FROM trial WHERE id > :after AND {condition} ORDER BY id LIMIT {PAGE}"
    after = 0
    while rows := connection.execute(sql, {**values, "after": after}).fetchall():
        for row in rows:
            try:
                trial = to_trial(references, row)
            except NO_ROW as error:
                raise RowError("trial", row["id"], error) from error
            yield row["run_id"], trial
        after = rows[-1]["id"]


def read_measured(
    connection: sqlite3.Connection, *, allow_nondeterministic: bool, **key: str
) -> dict[tuple[str, str], Status]:
    """As ``Database.measured``; ``key`` are kernel, direction, and text or digests of the others."""
    found: dict[tuple[str, str], Status] = {}
    for part, digest, name, repeatable, trial_id, reason in connection.execute(_MEASURED, key):
        try:
            status = found[part, digest] = Status(name)
        except ValueError as error:
            raise RowError("trial", trial_id, error) from error
        is_permitted = allow_nondeterministic and status.is_refused and repeatable == 0
        if is_permitted or lacks_a_library(status, reason):
            del found[part, digest]
    return found


def _to_row(references: References, trial: Trial) -> dict[str, Any]:
    op, _, name = trial.kernel.partition("/")
    if not op or not name:
        raise UsageError(f"a kernel is called op/name, not {trial.kernel!r}")
    config = config_to_json(trial.config)
    worst = trial.worst_error
    return {
        **{name: getattr(trial, name) for name in _PLAIN},
        "op": op,
        "stage": trial.stage.value,
        "signature": references.add_signature(trial.signature),
        "device": str(trial.device),
        "device_id": references.add_device(trial.device),
        "environment": references.add_environment(trial.environment),
        "config": config,
        "config_digest": digest_text(config),
        "is_heuristic": int(trial.is_heuristic),
        "status": trial.status.value,
        **measurement_columns(trial.measurement),
        "error_ratio": None if worst is None else worst.ratio,
        "repeatable": None if trial.repeatable is None else int(trial.repeatable),
        "started": time_text(trial.started_us),
        "ended": None if trial.ended_us is None else time_text(trial.ended_us),
        "conditions": _json(trial.conditions),
        "errors": canonical_json(
            [{"output": e.output, "error": _number(e.error), "allowed": _number(e.allowed)} for e in trial.errors]
        ),
        **asdict(trial.resources),
        "shortage": _json(trial.shortage),
        "prediction": _json(trial.prediction),
    }


def measurement_columns(measurement: Measurement | None) -> dict[str, Any]:
    """The columns of a measurement, samples and their figures."""
    if measurement is None:
        names = ("median_us", "min_us", "dispersion", "protocol", "samples_ns")
        return {**dict.fromkeys(names), "round_id": ""}
    samples, median = measurement.samples_ns, measurement.median_ns
    distance = statistics.median(abs(sample - median) for sample in samples)
    return {
        "median_us": median / 1000,
        "min_us": measurement.min_ns / 1000,
        "dispersion": round(distance / median, 6),
        "round_id": measurement.round_id,
        "protocol": _json(measurement.protocol),
        "samples_ns": canonical_json(list(samples)),
    }


def to_trial(references: References, row: sqlite3.Row) -> Trial:
    """The trial of a row.

    Raises:
      ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError: there is no such trial.
    """
    if not row["kernel"].startswith(f"{row['op']}/"):
        raise ValueError(f"kernel {row['kernel']!r} is none of {row['op']!r}")
    measurement = None
    if row["samples_ns"] is not None:
        measurement = Measurement(
            samples_ns=json_integers(row["samples_ns"]),
            protocol=_record(Protocol, row["protocol"]),
            round_id=row["round_id"],
        )
    return Trial(
        **{name: row[name] for name in _PLAIN},
        signature=references.signature(row["signature"]),
        device=references.device(row["device_id"]),
        environment=references.environment(row["environment"]),
        config=json_object(row["config"]),
        status=Status(row["status"]),
        stage=Stage(row["stage"]),
        errors=_errors(row["errors"]),
        measurement=measurement,
        resources=Resources(**{name: row[name] for name in _RESOURCES}),
        conditions=_record(Conditions, row["conditions"]),
        shortage=_record(Shortage, row["shortage"]),
        repeatable=None if row["repeatable"] is None else bool(row["repeatable"]),
        prediction=_record(Prediction, row["prediction"]),
        is_heuristic=bool(row["is_heuristic"]),
        started_us=time_us(row["started"]),
        ended_us=None if row["ended"] is None else time_us(row["ended"]),
    )


# Texts recur: reading them again would take most of the time.
@functools.lru_cache(10_000)
def _record(kind: type, text: str | None) -> Any:
    if text is None:
        return None
    items = json_object(text).items()
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in items})


@functools.lru_cache(10_000)
def _errors(text: str) -> tuple[OutputError, ...]:
    return tuple(
        OutputError(output=e["output"], error=float(e["error"]), allowed=float(e["allowed"])) for e in json.loads(text)
    )


def _json(record: Any) -> str | None:
    return None if record is None else canonical_json(asdict(record))


def _number(value: float) -> float | str:
    """JSON has no NaN and no infinity: they are words, which ``float`` reads."""
    return value if math.isfinite(value) else str(value)
