"""DataFrames for reports: one row a fact, plain columns, nothing rounded."""

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attn_tune.db import decision_queries, queries
from attn_tune.db.catalog import Catalog
from attn_tune.db.decision_table import read_decisions
from attn_tune.db.trials import read_trials
from attn_tune.schema import Signature, Trial, config_digest, config_to_json, unknown_name

if TYPE_CHECKING:
    import pandas as pd

SIGNATURE_PREFIX = "sig_"
TRIAL_COLUMNS = (
    "trial", "run", "op", "kernel", "direction", "part", "signature", "device", "family",
    "environment", "config", "config_digest", "status", "stage", "is_heuristic", "repeatable", "features", "median_ns",
    "min_ns", "samples", "error_ratio", "reason", "compile_ms", "shared_bytes", "registers",
    "spill_bytes", "predicted_ns", "low_ns", "high_ns", "model", "resource", "needed", "limit", "started_us",
)  # fmt: skip
DECISION_COLUMNS = (
    "op", "kernel", "direction", "signature", "device", "family", "environment", "config",
    "config_digest", "rank", "rule", "median_ns", "heuristic_ns", "gain", "regret_bound",
    "worst_error", "ties", "samples", "trials", "repeatable", "features",
)  # fmt: skip
RUN_COLUMNS = (
    "run", "status", "device", "environment", "jax", "triton", "host", "pid", "argv",
    "started_us", "heartbeat_us", "ended_us", "trials", "ok",
)  # fmt: skip


def read_frame(
    connection: sqlite3.Connection, catalog: Catalog, name: str, filters: Mapping[str, Any]
) -> "pd.DataFrame":
    """The frame called ``name``.

    Raises:
      UsageError: there is no such frame, or it cannot be narrowed by one of ``filters``.
    """
    if name not in FRAMES:
        raise unknown_name("frame", name, FRAMES)
    read, known = FRAMES[name]
    for key in filters:
        if key not in known:
            raise unknown_name(f"filter of frame {name!r}:", key, known)
    return read(connection, catalog, filters)


def _trials(
    connection: sqlite3.Connection, catalog: Catalog, filters: Mapping[str, Any]
) -> "pd.DataFrame":
    rows = []
    for trial_id, run_id, trial in read_trials(connection, catalog, filters):
        measured = trial.measurement
        worst = trial.worst_error
        rows.append(
            {
                "trial": trial_id,
                "run": run_id,
                "op": trial.signature.op,
                "kernel": trial.kernel,
                "direction": trial.direction,
                "part": trial.part,
                "signature": trial.signature.text,
                "device": str(trial.device),
                "family": trial.device.family,
                "environment": trial.environment.digest,
                "config": config_to_json(trial.config),
                "config_digest": trial.config_digest,
                "status": str(trial.status),
                "stage": str(trial.stage),
                "is_heuristic": trial.is_heuristic,
                "repeatable": trial.repeatable,
                "features": trial.features,
                "median_ns": measured.median_ns if measured else None,
                "min_ns": measured.min_ns if measured else None,
                "samples": len(measured.samples_ns) if measured else 0,
                "error_ratio": worst.ratio if worst else None,
                "reason": trial.reason,
                "compile_ms": trial.compile_ms,
                "shared_bytes": trial.resources.shared_bytes,
                "registers": trial.resources.registers,
                "spill_bytes": trial.resources.spill_bytes,
                **_compile_facts(trial),
                "started_us": trial.started_us,
                **_fields(trial.signature),
            }
        )
    return _frame(rows, TRIAL_COLUMNS)


def _compile_facts(trial: Trial) -> dict[str, Any]:
    found, lack = trial.prediction, trial.shortage
    return {
        "predicted_ns": found.ns if found else None,
        "low_ns": found.low_ns if found else None,
        "high_ns": found.high_ns if found else None,
        "model": found.model if found else None,
        "resource": lack.resource if lack else None,
        "needed": lack.needed if lack else None,
        "limit": lack.limit if lack else None,
    }


def _decisions(
    connection: sqlite3.Connection, catalog: Catalog, filters: Mapping[str, Any]
) -> "pd.DataFrame":
    rows = [
        {
            "op": d.op,
            "kernel": d.kernel,
            "direction": d.direction,
            "signature": d.signature.text,
            "device": str(d.device),
            "family": d.device.family,
            "environment": d.environment.digest,
            "config": config_to_json(d.config),
            "config_digest": config_digest(d.config),
            "rank": d.rank,
            "rule": str(d.rule),
            "median_ns": d.median_ns,
            "heuristic_ns": d.heuristic_ns,
            "gain": d.gain,
            "regret_bound": d.regret_bound,
            "worst_error": d.worst_error,
            "ties": len(d.ties),
            "samples": d.samples,
            "trials": d.trials,
            "repeatable": d.repeatable,
            "features": d.features,
            **_fields(d.signature),
        }
        for d in read_decisions(connection, catalog, filters)
    ]
    return _frame(rows, DECISION_COLUMNS)


def _runs(
    connection: sqlite3.Connection, catalog: Catalog, filters: Mapping[str, Any]
) -> "pd.DataFrame":
    rows = []
    for row in connection.execute(queries.RUNS):
        environment = catalog.environment(row["environment_id"])
        rows.append(
            {
                "run": row["id"],
                "status": row["status"],
                "device": str(catalog.device(row["device_id"])),
                "environment": environment.digest,
                "jax": environment.jax,
                "triton": environment.triton,
                "host": row["host"],
                "pid": row["pid"],
                "argv": " ".join(json.loads(row["argv"])),
                "started_us": row["started_us"],
                "heartbeat_us": row["heartbeat_us"],
                "ended_us": row["ended_us"],
                "trials": row["trials"],
                "ok": row["ok"],
            }
        )
    return _frame(rows, RUN_COLUMNS)


def _coverage(
    connection: sqlite3.Connection, catalog: Catalog, filters: Mapping[str, Any]
) -> "pd.DataFrame":
    return _from_sql(connection, queries.COVERAGE, filters)


def _failures(
    connection: sqlite3.Connection, catalog: Catalog, filters: Mapping[str, Any]
) -> "pd.DataFrame":
    return _from_sql(connection, queries.FAILURES, filters)


def _imported(
    connection: sqlite3.Connection, catalog: Catalog, filters: Mapping[str, Any]
) -> "pd.DataFrame":
    return _from_sql(connection, queries.IMPORTED, filters)


type _Reader = Callable[[sqlite3.Connection, Catalog, Mapping[str, Any]], "pd.DataFrame"]

_PROBLEM_FILTERS = ("op", "kernel", "direction", "signature", "device")
# One row a trial; a decision; a run; a (signature, direction, device, kernel) that was tried; a class of failure; an
# imported row.
FRAMES: dict[str, tuple[_Reader, tuple[str, ...]]] = {
    "trials": (_trials, (*queries.BATCH_FILTERS, *queries.TRIAL_FILTERS)),
    "decisions": (_decisions, tuple(decision_queries.DECISION_FILTERS)),
    "runs": (_runs, ()),
    "coverage": (_coverage, _PROBLEM_FILTERS),
    "failures": (_failures, (*_PROBLEM_FILTERS, "run", "status")),
    "imported": (_imported, ()),
}


def _from_sql(
    connection: sqlite3.Connection, sql: str, filters: Mapping[str, Any]
) -> "pd.DataFrame":
    known = queries.BATCH_FILTERS | queries.TRIAL_FILTERS
    narrowing = " AND ".join(known[name] for name in filters) or "TRUE"
    cursor = connection.execute(sql.format(filters=narrowing), dict(filters))
    columns = [column[0] for column in cursor.description]
    return _frame([dict(row) for row in cursor], columns)


def _fields(signature: Signature) -> dict[str, Any]:
    return {SIGNATURE_PREFIX + name: value for name, value in signature.items}


def _frame(rows: list[dict[str, Any]], columns: Sequence[str]) -> "pd.DataFrame":
    import pandas as pd

    if not rows:
        return pd.DataFrame(columns=list(columns))
    return pd.DataFrame.from_records(rows)
