"""The derived table of decisions: rebuilt from trials, read back as ``Decision``."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from attn_tune.db.decide.decisions import decide
from attn_tune.db.decide.recorded import RecordedTrial
from attn_tune.db.store.references import References
from attn_tune.db.store.rows import NO_ROW, RowError, json_object, json_texts
from attn_tune.db.store.sql import insert, narrowing, problem_filters
from attn_tune.db.store.trials import read_trials
from attn_tune.schema import Decision, Rule, config_to_json, digest_text

_PROBLEMS = """
SELECT DISTINCT trial.signature, trial.direction, device.digest AS device
FROM trial JOIN device ON device.id = trial.device_id
WHERE trial.signature IN
    (SELECT value FROM json_each(coalesce(:signatures, (SELECT json_group_array(text) FROM signature))))
ORDER BY 1, 2, 3
"""
_DROP = """
DELETE FROM decision WHERE signature = :signature AND direction = :direction
    AND device_id IN (SELECT id FROM device WHERE digest = :device)
"""
_POINT = """
SELECT point FROM trial WHERE signature = :signature AND direction = :direction AND point <> ''
    AND device_id IN (SELECT id FROM device WHERE digest = :device)
ORDER BY id DESC LIMIT 1
"""
_DEVICE = "SELECT min(id) FROM device WHERE digest = :device"
# Columns that have the name and the value of a field of ``Decision``.
_PLAIN = (
    "op", "kernel", "direction", "rank", "gain", "regret_bound", "worst_error", "samples", "trials", "features",
)  # fmt: skip
# Columns whose numbers are above zero where there are any.
_POSITIVE = ("median_us", "heuristic_us", "gain", "samples", "trials")
_READ = """
SELECT decision.* FROM decision JOIN device AS known ON known.id = device_id
WHERE {filters} ORDER BY signature, direction, known.digest, rank
"""
FILTERS = problem_filters("decision") | {"rank": "decision.rank = :rank"}
# One thing to decide, as SQL parameters: signature (its text), direction, device (its digest).
type Problem = dict[str, str]


def open_problems(connection: sqlite3.Connection, signatures: Iterable[str] | None) -> list[Problem]:
    """The problems that have trials, all of them or those of some signatures."""
    texts = None if signatures is None else json.dumps(sorted(signatures))
    rows = connection.execute(_PROBLEMS, {"signatures": texts})
    return [dict(row) for row in rows.fetchall()]


def decide_problem(connection: sqlite3.Connection, references: References, problem: Problem) -> tuple[Decision, ...]:
    """Decides one problem by its trials."""
    rows = read_trials(connection, references, problem)
    return decide(RecordedTrial(run, trial) for run, trial in rows)


def replace_decisions(
    connection: sqlite3.Connection,
    references: References,
    problem: Problem,
    decisions: Iterable[Decision],
) -> None:
    """Writes the decisions of one problem over the old ones; the caller holds the transaction."""
    connection.execute(_DROP, problem)
    point = connection.execute(_POINT, problem).fetchone()
    device_id = connection.execute(_DEVICE, problem).fetchone()[0]
    for d in decisions:
        assert d.median_ns is not None
        config = config_to_json(d.config)
        values = {
            **{name: getattr(d, name) for name in _PLAIN},
            **problem,
            "point": point[0] if point else "",
            "device": str(d.device),
            "device_id": device_id,
            "config": config,
            "config_digest": digest_text(config),
            "rule": str(d.rule),
            "median_us": d.median_ns / 1000,
            "heuristic_us": None if d.heuristic_ns is None else d.heuristic_ns / 1000,
            "ties": json.dumps(d.ties),
            "repeatable": None if d.repeatable is None else int(d.repeatable),
            "environment": references.add_environment(d.environment),
        }
        insert(connection, "decision", values)


def read_decisions(
    connection: sqlite3.Connection, references: References, filters: Mapping[str, Any]
) -> list[Decision]:
    """The decisions that fit, by signature, direction, device and rank."""
    condition, values = narrowing("decisions", FILTERS, filters)
    rows = connection.execute(_READ.format(filters=condition), values).fetchall()
    found: list[Decision] = []
    for row in rows:
        try:
            found.append(_to_decision(references, row))
        except NO_ROW as error:
            key = f"({row['signature']}, {row['direction']}, device {row['device_id']}, rank {row['rank']})"
            raise RowError("decision", key, error) from error
    return found


def _to_decision(references: References, row: sqlite3.Row) -> Decision:
    signature = references.signature(row["signature"])
    # Nothing but an edit by hand makes these.
    for name in _POSITIVE:
        if row[name] is not None and not row[name] > 0:
            raise ValueError(f"its {name} is {row[name]}")
    if row["config_digest"] != digest_text(row["config"]):
        raise ValueError("its config_digest is not that of its config")
    if row["kernel"].partition("/")[0] != row["op"]:
        raise ValueError(f"kernel {row['kernel']!r} is none of its op {row['op']}")
    return Decision(
        **{name: row[name] for name in _PLAIN},
        signature=signature,
        device=references.device(row["device_id"]),
        environment=references.environment(row["environment"]),
        config=json_object(row["config"]),
        rule=Rule(row["rule"]),
        median_ns=round(row["median_us"] * 1000),
        heuristic_ns=None if row["heuristic_us"] is None else round(row["heuristic_us"] * 1000),
        ties=json_texts(row["ties"]),
        repeatable=None if row["repeatable"] is None else bool(row["repeatable"]),
        contract=signature.version,
    )
