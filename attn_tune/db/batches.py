"""Stretches of trials that have their run, problem, device and software in common: stored once, not once a trial."""

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attn_tune.db import queries
from attn_tune.db.catalog import Catalog
from attn_tune.schema import Trial

# What the trials of a batch share, in the order of its columns.
type BatchKey = tuple[int, int, int, str, str, int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The trials with ids from ``first_id`` to ``last_id``."""

    first_id: int
    last_id: int
    run_id: int
    signature_id: int
    kernel_id: int
    direction: str
    part: str
    device_id: int
    evidence_id: int
    environment_id: int
    started_us: int

    @property
    def key(self) -> BatchKey:
        """What its trials share."""
        return (
            self.run_id,
            self.signature_id,
            self.kernel_id,
            self.direction,
            self.part,
            self.device_id,
            self.evidence_id,
            self.environment_id,
        )


def find_batches(
    connection: sqlite3.Connection, filters: Mapping[str, Any], *, after: int = 0
) -> Iterator[Batch]:
    """The batches that fit ``filters`` (of ``queries.BATCH_FILTERS``) and hold an id above ``after``, oldest first."""
    narrowing = [queries.BATCH_FILTERS[name] for name in filters]
    sql = queries.BATCHES.format(filters=" AND ".join(narrowing) or "TRUE")
    for row in connection.execute(sql, {**filters, "after": after}).fetchall():
        yield Batch(**dict(row))


class BatchWriter:
    """Finds the batch of each new trial inside one write transaction."""

    def __init__(self, connection: sqlite3.Connection, catalog: Catalog, run_id: int):
        self._connection, self._catalog, self._run_id = connection, catalog, run_id
        self._trial: Trial | None = None
        row = connection.execute(queries.LAST_BATCH).fetchone()
        self._first_id, self._last_id = (row[0], row[1]) if row else (0, 0)
        self._key: BatchKey | None = tuple(row[2:-1]) if row else None
        self._started_us = row[-1] if row else 0
        self._stored_id = self._last_id

    @property
    def last_id(self) -> int:
        """The newest trial's id."""
        return self._last_id

    def add(self, trial: Trial) -> tuple[int, int]:
        """The id of the next trial, and how long after its batch it started, in whole milliseconds, rounded down."""
        if self._trial is None or not _share_objects(trial, self._trial):
            key = self._find_key(trial)
            if key != self._key:
                self._start(key, trial.started_us)
            self._trial = trial
        self._last_id += 1
        return self._last_id, (trial.started_us - self._started_us) // 1000

    def _start(self, key: BatchKey, started_us: int) -> None:
        self.flush()
        self._key = key
        self._first_id = self._stored_id = self._last_id + 1
        self._started_us = started_us
        self._connection.execute(
            queries.ADD_BATCH, (self._first_id, self._first_id, *key, started_us)
        )

    def _find_key(self, trial: Trial) -> BatchKey:
        return (
            self._run_id,
            self._catalog.signature_id(trial.signature),
            self._catalog.kernel_id(trial.kernel),
            trial.direction,
            trial.part,
            self._catalog.device_id(trial.device),
            self._catalog.evidence_id(trial.device),
            self._catalog.environment_id(trial.environment),
        )

    def flush(self) -> None:
        """Stores where the newest batch ends; call it before the transaction does."""
        if self._stored_id != self._last_id:
            self._connection.execute(queries.GROW_BATCH, (self._last_id, self._first_id))
            self._stored_id = self._last_id


def _share_objects(a: Trial, b: Trial) -> bool:
    """True when both surely belong to one batch: cheaper than to compare what they say, which takes digests."""
    return (
        a.signature is b.signature
        and a.device is b.device
        and a.environment is b.environment
        and a.kernel == b.kernel
        and a.direction == b.direction
        and a.part == b.part
    )
