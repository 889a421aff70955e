"""DataFrames for reports: one row a fact, plain columns, nothing rounded. Times are timestamps, numbers are numbers."""

import functools
import sqlite3
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attn_tune.db.decide import decision_table
from attn_tune.db.store import trials
from attn_tune.db.store.references import References
from attn_tune.db.store.rows import NO_ROW, RowError, json_object
from attn_tune.db.store.schema import JSON_COLUMNS
from attn_tune.db.store.sql import narrowing, problem_filters
from attn_tune.schema import Stage, Status, unknown_name

if TYPE_CHECKING:
    import pandas as pd

SIGNATURE_PREFIX = "sig_"
CONFIG_PREFIX = "cfg_"

_TRIALS = """
SELECT trial.id AS trial, run_id AS run, trial.op, kernel, direction, part, stage, signature, point, trial.device,
       device.digest AS device_digest, device.family, environment, config, config_digest, status, reason, is_heuristic,
       repeatable, features, median_us, min_us, dispersion, coalesce(json_array_length(samples_ns), 0) AS samples,
       error_ratio, compile_ms, prove_ms,
       run_ms, trial.shared_bytes, registers, spill_bytes, prediction ->> 'ns' AS predicted_ns,
       prediction ->> 'low_ns' AS low_ns, prediction ->> 'high_ns' AS high_ns, prediction ->> 'model' AS model,
       shortage ->> 'resource' AS resource, shortage ->> 'needed' AS needed, shortage ->> 'limit' AS "limit", started,
       ended, signature.fields
FROM trial JOIN device ON device.id = device_id JOIN signature ON signature.text = trial.signature
WHERE {filters} ORDER BY trial.id
"""
_DECISIONS = """
SELECT decision.op, kernel, direction, signature, point, device,
       known.digest AS device_digest, known.family, environment, config, config_digest, rank,
       rule, median_us, heuristic_us, gain, regret_bound, worst_error, json_array_length(ties) AS ties, samples, trials,
       repeatable, features, signature.fields
FROM decision JOIN device AS known ON known.id = device_id JOIN signature ON signature.text = decision.signature
WHERE {filters} ORDER BY signature, direction, known.digest, rank
"""
_RUNS = f"""
SELECT run.id AS run, run.status, device.variant AS device, run.environment, environment.jax, environment.triton, host,
       pid, (SELECT group_concat(value, ' ') FROM json_each(argv)) AS argv, started, heartbeat, ended, run.trials,
       run.cases, cases_done, cases_decided, run.configs, configs_done,
       (SELECT count(*) FROM trial WHERE run_id = run.id AND status = '{Status.OK}') AS ok
FROM run JOIN device ON device.id = device_id JOIN environment ON environment.digest = run.environment
ORDER BY run.id
"""
_FINALS = f"""
SELECT trial.id AS trial, trial.op, kernel, direction, signature, trial.device, device.digest AS device_digest,
       device.family, config_digest, round_id,
       median_us, dispersion, conditions ->> '$.sm_clock_mhz[0]' AS clock_low,
       conditions ->> '$.sm_clock_mhz[1]' AS clock_high, conditions ->> '$.temperature_c[0]' AS temperature_low,
       conditions ->> '$.temperature_c[1]' AS temperature_high, conditions ->> '$.power_w[0]' AS power_low,
       conditions ->> '$.power_w[1]' AS power_high, conditions ->> 'throttle' AS throttle,
       conditions ->> 'repeats' AS repeats
FROM trial JOIN device ON device.id = device_id
WHERE stage = '{Stage.FINAL}' AND {{filters}} ORDER BY trial.id
"""
_SOFTWARE = """
SELECT trial.op, kernel, direction, signature, trial.device, device.digest AS device_digest, device.family, jax, jaxlib,
       triton, compiler, driver, environment.attn_tune,
       (SELECT value ->> 1 FROM json_each(device.evidence) WHERE value ->> 0 = 'cudnn') AS cudnn,
       protocol ->> 'timer' AS timer, protocol ->> 'flush_l2' AS is_cold, count(*) AS trials
FROM trial JOIN device ON device.id = device_id JOIN environment ON environment.digest = environment
WHERE protocol IS NOT NULL AND {filters}
GROUP BY signature, direction, device.id, kernel, jax, jaxlib, triton, compiler, driver, environment.attn_tune, timer,
       is_cold
ORDER BY min(trial.id)
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
_VIEW = """
SELECT {view}.*, signature.fields FROM {view} JOIN signature ON signature.text = {view}.signature ORDER BY {order}
"""
_SAMPLES = """
SELECT samples.* FROM samples JOIN trial ON trial.id = trial_id WHERE {filters} ORDER BY trial_id, position
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
    "boolean": ("is_heuristic", "repeatable", "decided", "is_cold"),
    "float64": (
        "median_us", "min_us", "dispersion", "error_ratio", "compile_ms", "prove_ms", "run_ms", "heuristic_us", "gain",
        "untuned_us", "regret_bound", "worst_error", "speedup", "us",
    ),
    "Int64": (
        "trial", "run", "features", "samples", "shared_bytes", "registers", "spill_bytes", "predicted_ns", "low_ns",
        "high_ns", "needed", "limit", "rank", "ties", "trials", "pid", "ok", "configs", "median_ns", "trial_id",
        "run_id", "position", "clock_low", "clock_high", "temperature_low", "temperature_high", "power_low",
        "power_high", "repeats",
        "cases", "cases_done", "cases_decided", "configs_done",
    ),
}  # fmt: skip
_TIMES = ("started", "ended", "heartbeat", "newest")
# Columns that no row leaves empty, though their SQL looks into JSON.
_GIVEN = ("device", "kernel", "state")
# What names a row of a frame: a number in its table, or else the words.
_TABLES = {"trial": "trial", "trial_id": "trial", "run": "run"}
_KEY = ("signature", "direction", "kernel")

# Queries, and the conditions that can narrow each.
FRAMES: dict[str, tuple[str, Mapping[str, str]]] = {
    "trials": (_TRIALS, trials.FILTERS),
    "decisions": (_DECISIONS, decision_table.FILTERS),
    "runs": (_RUNS, {}),
    "finals": (_FINALS, problem_filters("trial")),
    "software": (_SOFTWARE, problem_filters("trial")),
    "coverage": (_COVERAGE, problem_filters("trial")),
    "winners": (_VIEW.format(view="winners", order="winners.signature, direction, device"), {}),
    "failures": (_VIEW.format(view="failures", order="trial_id"), {}),
    "samples": (_SAMPLES, problem_filters("trial")),
    "imported": (_IMPORTED, {}),
}


def read_frame(
    connection: sqlite3.Connection, references: References, name: str, filters: Mapping[str, Any]
) -> "pd.DataFrame":
    """The frame called ``name``.

    Raises:
      UsageError: there is no such frame, or it cannot be narrowed by one of ``filters``.
      RowError: a row cannot be read.
    """
    if name not in FRAMES:
        raise unknown_name("frame", name, FRAMES)
    sql, conditions = FRAMES[name]
    condition, values = narrowing(f"frame {name!r}", conditions, filters)
    import pandas as pd

    try:
        found = pd.read_sql_query(sql.format(filters=condition), connection, params=values)
    except (sqlite3.Error, pd.errors.DatabaseError) as error:  # pandas has an error of its own around SQLite's
        if "malformed JSON" in str(error):
            _refuse_malformed(connection)
        cause = error.__cause__
        raise (cause if isinstance(cause, sqlite3.Error) else error) from None
    types = {column: kind for kind, columns in _TYPES.items() for column in columns}
    for column in found:
        if column in types:
            found[column] = _converted(name, found, column, lambda v, kind=types[column]: v.astype(kind))
        elif column in _TIMES:
            found[column] = _converted(name, found, column, _times)
        elif column in _GIVEN:
            _converted(name, found, column, _all_given)
    if "predicted_ns" in found:
        _converted(name, found.loc[found["status"] == Status.PREDICTED], "predicted_ns", _all_given)
    if "fields" not in found:
        if "config" in found:
            _converted(name, found, "config", _objects)
        return found
    for text in found["signature"].unique():
        references.signature(text)
    wide = [
        _converted(name, found, column, functools.partial(_columns_of, prefix=prefix))
        for column, prefix in (("fields", SIGNATURE_PREFIX), ("config", CONFIG_PREFIX))
    ]
    return pd.concat([found.drop(columns="fields"), *wide], axis=1)


def _converted[T](name: str, found: "pd.DataFrame", column: str, convert: Callable[[Any], T]) -> T:
    """A column of the frame ``name``, converted; RowError for the first row whose value cannot be."""
    values = found[column]
    try:
        return convert(values)
    except NO_ROW as error:
        while len(half := values.iloc[: len(values) // 2]):
            try:
                convert(half)
                values = values.iloc[len(half) :]
            except NO_ROW:
                values = half
        row = found.loc[values.index[0]]
        table = next((column for column in _TABLES if column in row), None)
        key = row[table] if table else f"({', '.join(str(row[part]) for part in _KEY)})"
        what = _TABLES[table] if table else f"the frame {name!r}"
        raise RowError(what, key, f"its {column} is {row[column]!r:.80}") from error


def _times(values: "pd.Series") -> "pd.Series":
    import pandas as pd

    times = pd.to_datetime(values, format="ISO8601", utc=True)
    times.dt.as_unit("ns")  # The error of a time that nanoseconds cannot hold, which some of pandas' sums are made in.
    return times


def _all_given(values: "pd.Series") -> None:
    if values.isna().any():
        raise ValueError("one is NULL")


def _refuse_malformed(connection: sqlite3.Connection) -> None:
    """Raise RowError for the first row with a text that is no JSON."""
    for table, (key, columns) in JSON_COLUMNS.items():
        for column in columns:
            sql = f"SELECT {key}, {column} FROM {table} WHERE {column} NOT NULL AND NOT json_valid({column}) LIMIT 1"
            for which, text in connection.execute(sql):
                raise RowError(table, which, f"its {column} is {text!r:.80}")


def _columns_of(texts: "pd.Series", prefix: str) -> "pd.DataFrame":
    """JSON objects as columns; the knobs of a part are called ``part.knob``."""
    import pandas as pd

    codes, unique = pd.factorize(texts, use_na_sentinel=False)
    wide = pd.json_normalize([json_object(text) for text in unique]).add_prefix(prefix)
    return wide.iloc[codes].set_axis(texts.index).convert_dtypes()


def _objects(texts: "pd.Series") -> dict[str, dict[str, Any]]:
    return {text: json_object(text) for text in set(texts)}
