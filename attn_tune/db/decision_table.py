"""The derived table of decisions: rebuilt from trials, read back as ``Decision``."""

import functools
import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attn_tune.db import decision_queries
from attn_tune.db.batches import Batch
from attn_tune.db.catalog import Catalog
from attn_tune.db.decisions import decide
from attn_tune.db.shortlist import make_shortlist, prepare
from attn_tune.schema import Decision, Rule

# Signature id, direction, device id and rank.
type Key = tuple[int, str, int, int]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to decide, by the ids of its rows."""

    signature_id: int
    signature: str
    direction: str
    device_id: int
    device: str


def open_problems(
    connection: sqlite3.Connection, signatures: Iterable[str] | None
) -> list[Problem]:
    """What has trials, all of it or for some signatures' texts; each can be decided from now on."""
    prepare(connection)
    wanted = None if signatures is None else set(signatures)
    rows = connection.execute(decision_queries.PROBLEMS)
    return [Problem(*row) for row in rows if wanted is None or row["text"] in wanted]


def decide_problem(
    connection: sqlite3.Connection, catalog: Catalog, problem: Problem
) -> tuple[Decision, ...]:
    """Decides one problem by the trials that may matter; ``prepare`` of ``shortlist`` comes first."""
    key = (problem.signature_id, problem.device_id, problem.direction)
    rows = connection.execute(decision_queries.PROBLEM_BATCHES, key).fetchall()
    found = make_shortlist(connection, catalog, [Batch(**dict(row)) for row in rows])
    return decide(found.findings, tried=found.tried)


def replace_decisions(
    connection: sqlite3.Connection,
    catalog: Catalog,
    problem: Problem,
    decisions: Iterable[Decision],
) -> None:
    """Writes the decisions of one problem over the old ones; the caller holds the transaction."""
    key = (problem.signature_id, problem.direction, problem.device_id)
    connection.execute(decision_queries.DROP_DECISIONS, key)
    for decision in decisions:
        values = {
            "signature_id": problem.signature_id,
            "direction": problem.direction,
            "device_id": problem.device_id,
            "rank": decision.rank,
            "config_id": catalog.config_id(
                decision.kernel, decision.direction, "", decision.config
            ),
            "environment_id": catalog.environment_id(decision.environment),
            "rule": str(decision.rule),
            "median_ns": decision.median_ns,
            "heuristic_ns": decision.heuristic_ns,
            "gain": decision.gain,
            "regret_bound": decision.regret_bound,
            "worst_error": decision.worst_error,
            "ties": json.dumps(decision.ties),
            "samples": decision.samples,
            "trials": decision.trials,
            "repeatable": None if decision.repeatable is None else int(decision.repeatable),
            "features": decision.features,
        }
        connection.execute(decision_queries.ADD_DECISION, values)


def read_decisions(
    connection: sqlite3.Connection, catalog: Catalog, filters: Mapping[str, Any]
) -> list[Decision]:
    """The decisions that fit, by signature, direction, device and rank."""
    narrowing = " AND ".join(decision_queries.DECISION_FILTERS[name] for name in filters) or "TRUE"
    rows = connection.execute(decision_queries.DECISIONS.format(filters=narrowing), dict(filters))
    return [to_decision(catalog, *_split(tuple(row))) for row in rows]


def _split(row: tuple[Any, ...]) -> tuple[Key, str, str, tuple[Any, ...]]:
    """A row of all decisions: key, kernel, config and the rest."""
    return row[:4], row[4], row[5], row[6:]


def to_decision(
    catalog: Catalog,
    key: Key,
    kernel: str,
    body: str,
    values: tuple[Any, ...],
) -> Decision:
    """The decision of a row: its key, and what ``decision_queries`` reads beyond that."""
    # By place: finding columns of a row by name, and JSON for what is mostly empty, are most of a lookup.
    signature_id, direction, device_id, rank = key
    (
        _,
        environment_id,
        rule,
        median_ns,
        heuristic_ns,
        gain,
        regret_bound,
        worst_error,
        ties,
        samples,
        trials,
        repeatable,
        features,
    ) = values
    signature = catalog.signature(signature_id)
    return Decision.from_fields(
        {
            "op": signature.op,
            "direction": direction,
            "signature": signature,
            "device": catalog.device(device_id),
            "environment": catalog.environment(environment_id),
            "kernel": kernel,
            "config": read_config(body),
            "rule": _RULES.get(rule) or Rule(rule),
            "median_ns": median_ns,
            "heuristic_ns": heuristic_ns,
            "gain": gain,
            "regret_bound": regret_bound,
            "worst_error": worst_error,
            "ties": _read_ties(ties),
            "samples": samples,
            "trials": trials,
            "repeatable": None if repeatable is None else bool(repeatable),
            "features": features,
            "contract": signature.version,
            "rank": rank,
        }
    )


_RULES = {str(rule): rule for rule in Rule}


@functools.lru_cache(10_000)
def _read_ties(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


def read_config(body: str) -> dict[str, Any]:
    """A config of the caller's own."""
    config, is_flat = _parse_config(body)
    return dict(config) if is_flat else _copied(config)


def _copied(value: Any) -> Any:
    """Of plain data: faster than reading its JSON again."""
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


@functools.lru_cache(10_000)
def _parse_config(body: str) -> tuple[dict[str, Any], bool]:
    config = json.loads(body)
    return config, not any(isinstance(value, dict | list) for value in config.values())
