"""Which trials a decision can depend on, found without reading the others: a problem may have thousands.

Exactly those that ``decisions.decide`` would have looked at come out, so its answer is the same as from all of them.
"""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from attn_tune.db import decision_queries
from attn_tune.db.batches import Batch
from attn_tune.db.catalog import Catalog
from attn_tune.db.decisions import CONTENDERS, Entry, right_entries
from attn_tune.db.finding_rows import read_findings
from attn_tune.db.findings import Finding
from attn_tune.schema.trial import WHOLE

# Fewer trials of a kernel are simply all read.
FEW = 64
# Configs that are read at a time while the fastest are looked for.
STEP = 2 * CONTENDERS


@dataclass(kw_only=True, slots=True)
class Shortlist:
    """What ``decide`` needs of one problem. ``tried`` counts all trials by kernel, those left out too."""

    findings: list[Finding] = field(default_factory=list)
    tried: dict[str, int] = field(default_factory=dict)


def prepare(connection: sqlite3.Connection) -> None:
    """Notes which outcomes say more than a time of a search; once before shortlists are made."""
    for statement in decision_queries.PREPARE_SHORTLISTS:
        connection.execute(statement)


def make_shortlist(
    connection: sqlite3.Connection, catalog: Catalog, batches: Iterable[Batch]
) -> Shortlist:
    """The shortlist of one problem from all its batches; ``prepare`` comes first."""
    by_kernel: dict[int, list[Batch]] = defaultdict(list)
    for batch in batches:
        by_kernel[batch.kernel_id].append(batch)
    found = Shortlist()
    for of_kernel in by_kernel.values():
        kernel = _Kernel(connection, catalog, of_kernel)
        findings = kernel.findings()
        if findings:
            found.findings += findings
            found.tried[findings[0].kernel] = kernel.count
    return found


class _Kernel:
    """The trials of one kernel on one problem."""

    def __init__(self, connection: sqlite3.Connection, catalog: Catalog, batches: Sequence[Batch]):
        self._connection, self._catalog = connection, catalog
        self._batches = batches
        self._known: dict[int, Finding] = {}
        self._summaries = {
            batch: self._rows(decision_queries.SUMMARY, batch)[0] for batch in batches
        }
        self.count = sum(row["count"] for row in self._summaries.values())

    def findings(self) -> list[Finding]:
        """Those of its trials that matter; at least one if there are any."""
        if self.count <= FEW:
            return self._read({b: self._ids(decision_queries.ALL_IDS, b) for b in self._batches})
        ages, newest, marks = self._ages()
        if newest is None:  # Nothing was right, so nothing will be decided.
            return self._read(
                {b: self._ids(decision_queries.ALL_IDS, b)[:1] for b in self._batches}
            )
        environment = newest.environment_id
        here = [b for b in self._batches if b.environment_id == environment and b.part == WHOLE]
        wanted = marks
        configs: set[int] = set()
        for batch in self._batches:
            # Of an environment without an age nothing is left: ``gc`` took its trials.
            if ages.get(batch.environment_id, -1) < ages[environment]:
                continue
            barred: dict[int, int] = {}  # One trial a config is enough.
            for trial_id, config, tells, bars, refuses in self._rows(
                decision_queries.NOTABLE, batch
            ):
                if refuses:
                    wanted[batch].append(trial_id)
                if bars:
                    barred.setdefault(config, trial_id)
                if tells and batch.environment_id == environment and batch.part == WHOLE:
                    configs.add(config)
            wanted[batch] += barred.values()
        found = self._with_configs(wanted, here, configs)
        if self._needs_fastest(found, environment):
            found = self._with_fastest(wanted, here, configs, environment)
        return found

    def _needs_fastest(self, findings: Sequence[Finding], environment_id: int) -> bool:
        """False when all contenders are finalists, as they are when the untuned config is one."""
        entries = self._entries(findings, environment_id)
        finalists = [e for e in entries if e.rounds]
        heuristics = [e for e in entries if e.is_heuristic]
        return len(entries) < 2 or not finalists or not all(e.rounds for e in heuristics)

    def _with_fastest(
        self,
        wanted: Mapping[Batch, list[int]],
        here: Sequence[Batch],
        configs: set[int],
        environment_id: int,
    ) -> list[Finding]:
        """Adds configs, the fastest first, until no other can be among the fastest that are right."""
        least: dict[int, int] = {}
        for batch in here:
            for config, median in self._rows(decision_queries.FASTEST, batch):
                least[config] = min(median, least.get(config, median))
        order = sorted(least, key=lambda config: (least[config], config))
        taken = 0
        while True:
            taken += STEP
            findings = self._with_configs(wanted, here, configs | set(order[:taken]))
            if taken >= len(order):
                return findings
            entries = self._entries(findings, environment_id)
            medians = sorted(entry.median_ns for entry in entries)
            # A config is never faster as a whole than the fastest of its trials.
            if len(medians) >= CONTENDERS and medians[CONTENDERS - 1] < least[order[taken]]:
                return findings

    def _entries(self, findings: Sequence[Finding], environment_id: int) -> list[Entry]:
        return right_entries(findings, self._catalog.environment(environment_id))

    def _with_configs(
        self, wanted: Mapping[Batch, list[int]], here: Sequence[Batch], configs: set[int]
    ) -> list[Finding]:
        ids = {batch: list(found) for batch, found in wanted.items()}
        text = json.dumps(sorted(configs))
        for batch in here:
            ids[batch] += self._ids(decision_queries.IDS_OF_CONFIGS, batch, configs=text)
        return self._read(ids)

    def _ages(self) -> tuple[dict[int, int], Batch | None, dict[Batch, list[int]]]:
        """When each environment was last in use, the batch of the newest trial that was ok and whole, and the trials
        that show both.
        """
        ages: dict[int, int] = {}
        last: dict[int, tuple[Batch, int]] = {}
        by_age = sorted(
            (
                (batch.started_us + 1000 * row["newest_ms"], batch)
                for batch, row in self._summaries.items()
                if row["count"]
            ),
            key=itemgetter(0),
            reverse=True,
        )
        for age, batch in by_age:
            if batch.environment_id not in ages:
                ages[batch.environment_id] = age
                last[batch.environment_id] = (batch, self._summaries[batch]["newest_ms"])
        newest: tuple[int, str] = (-1, "")
        newest_ok: Batch | None = None
        for limit, batch in by_age:
            if limit < newest[0]:
                break  # Its trials are all older, and so are those of the batches behind it.
            if batch.part != WHOLE:
                continue
            after_ms = self._rows(decision_queries.NEWEST_OK, batch)[0][0]
            if after_ms is not None:
                digest = self._catalog.software(batch.environment_id)
                age = (batch.started_us + 1000 * after_ms, digest)
                if age > newest:
                    newest, newest_ok = age, batch
        marks: dict[Batch, list[int]] = {batch: [] for batch in self._batches}
        if len(ages) > 1:  # With one there is nothing to tell apart.
            for batch, after_ms in last.values():
                marks[batch] += self._ids(decision_queries.ID_AT, batch, after_ms=after_ms)
            if newest_ok is not None:
                after_ms = (newest[0] - newest_ok.started_us) // 1000
                marks[newest_ok] += self._ids(
                    decision_queries.OK_ID_AT, newest_ok, after_ms=after_ms
                )
        return ages, newest_ok, marks

    def _read(self, ids: Mapping[Batch, list[int]]) -> list[Finding]:
        found = []
        for batch, several in ids.items():
            wanted = set(several)
            new = wanted - self._known.keys()
            if new:
                self._known.update(read_findings(self._connection, self._catalog, batch, new))
            found += [self._known[trial_id] for trial_id in sorted(wanted)]
        return found

    def _ids(self, sql: str, batch: Batch, **values: str | int) -> list[int]:
        return [row[0] for row in self._rows(sql, batch, **values)]

    def _rows(self, sql: str, batch: Batch, **values: str | int) -> list[sqlite3.Row]:
        within = {"first": batch.first_id, "last": batch.last_id}
        return self._connection.execute(sql, within | values).fetchall()
