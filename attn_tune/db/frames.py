"""DataFrames for reports: one row a fact, plain columns, nothing rounded. Times are timestamps, numbers are numbers."""

import json
import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attn_tune.db.decide import decision_table
from attn_tune.db.store import trials
from attn_tune.db.store.sql import narrowing, problem_filters
from attn_tune.schema import Status, unknown_name

if TYPE_CHECKING:
    import pandas as pd

SIGNATURE_PREFIX = "sig_"
CONFIG_PREFIX = "cfg_"

_TRIALS = """
SELECT trial.id AS trial, run_id AS run, trial.op, kernel, direction, part, stage, signature, point, trial.device,
       device.family, environment, config, config_digest, status, reason, is_heuristic, repeatable, features, median_us,
       min_us, dispersion, coalesce(json_array_length(samples_ns), 0) AS samples, error_ratio, compile_ms, prove_ms,
       run_ms, trial.shared_bytes, registers, spill_bytes, prediction ->> 'ns' AS predicted_ns,
       prediction ->> 'low_ns' AS low_ns, prediction ->> 'high_ns' AS high_ns, prediction ->> 'model' AS model,
       shortage ->> 'resource' AS resource, shortage ->> 'needed' AS needed, shortage ->> 'limit' AS "limit", started,
       ended, signature.fields
FROM trial JOIN device ON device.id = device_id JOIN signature ON signature.text = trial.signature
WHERE {filters} ORDER BY trial.id
"""
_DECISIONS = """
SELECT decision.op, kernel, direction, signature, point, device, known.family, environment, config, config_digest, rank,
       rule, median_us, heuristic_us, gain, regret_bound, worst_error, json_array_length(ties) AS ties, samples, trials,
       repeatable, features, signature.fields
FROM decision JOIN device AS known ON known.id = device_id JOIN signature ON signature.text = decision.signature
WHERE {filters} ORDER BY signature, direction, known.digest, rank
"""
_RUNS = f"""
SELECT run.id AS run, run.status, device.variant AS device, run.environment, environment.jax, environment.triton, host,
       pid, (SELECT group_concat(value, ' ') FROM json_each(argv)) AS argv, started, heartbeat, ended, run.trials,
       (SELECT count(*) FROM trial WHERE run_id = run.id AND status = '{Status.OK}') AS ok
FROM run JOIN device ON device.id = device_id JOIN environment ON environment.digest = run.environment
ORDER BY run.id
"""
_COVERAGE = f"""
SELECT trial.op, kernel, direction, signature, trial.device, count(*) AS trials, sum(status = '{Status.OK}') AS ok,
       count(DISTINCT config_digest || part) AS configs, max(started) AS newest,
       EXISTS (SELECT 1 FROM decision JOIN device AS theirs ON theirs.id = decision.device_id
               WHERE decision.signature = trial.signature AND decision.direction = trial.direction
                   AND theirs.digest = device.digest) AS decided
FROM trial JOIN device ON device.id = device_id
WHERE {{filters}}
GROUP BY signature, direction, device.digest, kernel ORDER BY signature, direction, trial.device, kernel
"""
_IMPORTED = """
SELECT imported_pack.name AS pack, imported_pack.version, imported_row.device_digest,
       json_extract(manifest, '$.devices."' || device_digest || '".variant') AS device,
       json_extract(manifest, '$.devices."' || device_digest || '".family') AS family,
       signature, direction, (body ->> 'op') || '/' || kernel AS kernel, rank, config,
       body ->> 'state' AS state, body ->> 'median_ns' AS median_ns
FROM imported_row JOIN imported_pack ON imported_pack.id = pack_id
ORDER BY signature, direction, device_digest, rank
"""

# The types of columns that SQL leaves open: NULL is no number, and SQLite has neither times nor truth values.
_TYPES = {
    "boolean": ("is_heuristic", "repeatable", "decided"),
    "float64": (
        "median_us", "min_us", "dispersion", "error_ratio", "compile_ms", "prove_ms", "run_ms", "heuristic_us", "gain",
        "regret_bound", "worst_error", "speedup",
    ),
    "Int64": (
        "trial", "run", "features", "samples", "shared_bytes", "registers", "spill_bytes", "predicted_ns", "low_ns",
        "high_ns", "needed", "limit", "rank", "ties", "trials", "pid", "ok", "configs", "median_ns", "trial_id",
        "run_id",
    ),
}  # fmt: skip
_TIMES = ("started", "ended", "heartbeat", "newest")

# Queries, and the conditions that can narrow each.
FRAMES: dict[str, tuple[str, Mapping[str, str]]] = {
    "trials": (_TRIALS, trials.FILTERS),
    "decisions": (_DECISIONS, decision_table.FILTERS),
    "runs": (_RUNS, {}),
    "coverage": (_COVERAGE, problem_filters("trial")),
    "winners": ("SELECT * FROM winners", {}),
    "failures": ("SELECT * FROM failures", {}),
    "imported": (_IMPORTED, {}),
}


def read_frame(connection: sqlite3.Connection, name: str, filters: Mapping[str, Any]) -> "pd.DataFrame":
    """The frame called ``name``.

    Raises:
      UsageError: there is no such frame, or it cannot be narrowed by one of ``filters``.
    """
    if name not in FRAMES:
        raise unknown_name("frame", name, FRAMES)
    sql, conditions = FRAMES[name]
    condition, values = narrowing(f"frame {name!r}", conditions, filters)
    import pandas as pd

    found = pd.read_sql_query(sql.format(filters=condition), connection, params=values)
    types = {column: kind for kind, columns in _TYPES.items() for column in columns}
    found = found.astype({column: types[column] for column in found if column in types})
    for column in found.columns.intersection(_TIMES):
        found[column] = pd.to_datetime(found[column], format="ISO8601", utc=True)
    if "fields" not in found:
        return found
    wide = [
        _columns_of(list(found[column]), prefix)
        for column, prefix in (("fields", SIGNATURE_PREFIX), ("config", CONFIG_PREFIX))
    ]
    return pd.concat([found.drop(columns="fields"), *wide], axis=1)


def _columns_of(texts: list[str], prefix: str) -> "pd.DataFrame":
    """JSON objects as columns; the knobs of a part are called ``part.knob``."""
    import pandas as pd

    objects = {text: json.loads(text) for text in set(texts)}
    return pd.json_normalize([objects[text] for text in texts]).add_prefix(prefix).convert_dtypes()
