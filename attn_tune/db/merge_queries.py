"""SQL that copies one lab database into another. Their rows get our ids through temporary tables ``map_*``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SOURCE = "merged"


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogTable:
    """A table whose rows are found by what they say: by ``key``, which may name rows of other such tables."""

    name: str
    key: Sequence[str]
    references: Mapping[str, str] = field(default_factory=dict)

    def statements(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Adds the rows that are new here, then maps their ids to ours."""
        rest = [column for column in columns if column != "id"]
        joins = "".join(
            f" LEFT JOIN temp.map_{table} ON map_{table}.theirs = s.{column}"
            for column, table in self.references.items()
        )
        same = " AND ".join(f"m.{column} IS {self._ours(column)}" for column in self.key)
        values = ", ".join(self._ours(column) for column in rest)
        return (
            f"INSERT INTO main.{self.name} ({', '.join(rest)}) SELECT {values} FROM {SOURCE}.{self.name} s{joins} "
            f"WHERE NOT EXISTS (SELECT 1 FROM main.{self.name} m WHERE {same}) ORDER BY s.id",
            f"CREATE TEMP TABLE map_{self.name} (theirs INTEGER PRIMARY KEY, ours INTEGER NOT NULL)",
            f"INSERT INTO temp.map_{self.name} SELECT s.id, m.id FROM {SOURCE}.{self.name} s{joins} "
            f"JOIN main.{self.name} m ON {same}",
        )

    def _ours(self, column: str) -> str:
        table = self.references.get(column)
        return f"map_{table}.ours" if table else f"s.{column}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PartTable:
    """Rows that belong to one row of a ``CatalogTable``; they are there or not with it."""

    name: str
    parent: str

    def statements(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Adds the parts of the rows that are new here."""
        rest = ", ".join(f"s.{c}" for c in columns if c != f"{self.parent}_id")
        names = ", ".join(c for c in columns if c != f"{self.parent}_id")
        return (
            f"INSERT OR IGNORE INTO main.{self.name} ({self.parent}_id, {names}) SELECT map_{self.parent}.ours, {rest} "
            f"FROM {SOURCE}.{self.name} s JOIN temp.map_{self.parent} ON theirs = s.{self.parent}_id",
        )


# In an order in which what a row refers to comes first.
CATALOG: tuple[CatalogTable | PartTable, ...] = (
    CatalogTable(name="device", key=("digest",)),
    CatalogTable(name="device_evidence", key=("digest",)),
    CatalogTable(name="environment", key=("digest",)),
    CatalogTable(name="kernel", key=("op", "name")),
    CatalogTable(name="signature", key=("digest",)),
    PartTable(name="signature_field", parent="signature"),
    CatalogTable(
        name="config",
        key=("kernel_id", "direction", "part", "digest"),
        references={"kernel_id": "kernel"},
    ),
    CatalogTable(
        name="protocol",
        key=("timer", "warmup", "flush_l2", "calls_per_sample", "interleaved"),
    ),
    CatalogTable(name="text", key=("digest",)),
    CatalogTable(
        name="resources",
        key=("shared_bytes", "registers", "spill_bytes", "facts_id"),
        references={"facts_id": "text"},
    ),
    CatalogTable(name="round", key=("round_id",)),
    CatalogTable(name="verification", key=("digest",)),
    PartTable(name="verification_error", parent="verification"),
    CatalogTable(
        name="outcome",
        key=(
            "status",
            "stage",
            "is_heuristic",
            "reason_id",
            "protocol_id",
            "round_id",
            "repeatable",
            "features",
        ),
        references={"reason_id": "text", "protocol_id": "protocol"},
    ),
)
TEMPORARY = (
    *(f"map_{table.name}" for table in CATALOG if isinstance(table, CatalogTable)),
    "map_run",
    "their_run",
)

# A run that goes on elsewhere is not running here; the next merge brings its end.
START_RUNS = (
    f"""CREATE TEMP TABLE their_run AS
    SELECT id, uid, device_id, evidence_id, environment_id, argv, host, pid, started_us, heartbeat_us,
           CASE status WHEN 'running' THEN heartbeat_us ELSE ended_us END AS ended_us,
           CASE status WHEN 'running' THEN 'interrupted' ELSE status END AS status
    FROM {SOURCE}.run""",
    "CREATE TEMP TABLE map_run (theirs INTEGER PRIMARY KEY, ours INTEGER NOT NULL, known, cut)",
    """INSERT INTO temp.map_run
    SELECT t.id, run.id, 1, 0 FROM temp.their_run t JOIN main.run ON run.uid = t.uid""",
)
ENDINGS = """
SELECT map_run.ours AS run, t.status, t.ended_us, t.heartbeat_us
FROM temp.map_run JOIN temp.their_run t ON t.id = map_run.theirs
"""
ADD_RUNS = """
INSERT INTO main.run (uid, device_id, evidence_id, environment_id, argv, host, pid, started_us, heartbeat_us, ended_us,
                      status)
SELECT t.uid, map_device.ours, map_device_evidence.ours, map_environment.ours, t.argv, t.host, t.pid, t.started_us,
       t.heartbeat_us, t.ended_us, t.status
FROM temp.their_run t
JOIN temp.map_device ON map_device.theirs = t.device_id
JOIN temp.map_device_evidence ON map_device_evidence.theirs = t.evidence_id
JOIN temp.map_environment ON map_environment.theirs = t.environment_id
WHERE t.id NOT IN (SELECT theirs FROM temp.map_run) ORDER BY t.id
"""
MAP_RUNS = """
INSERT INTO temp.map_run
SELECT t.id, run.id, 0, 0 FROM temp.their_run t JOIN main.run ON run.uid = t.uid
WHERE t.id NOT IN (SELECT theirs FROM temp.map_run)
"""
KNOWN_RUNS = "SELECT ours, theirs FROM temp.map_run WHERE known"
COUNT_PLACES = """
SELECT coalesce(sum(last_id - first_id + 1), 0) FROM main.trial_batch WHERE run_id = ?
"""
THEIR_RANGES = (
    f"SELECT first_id, last_id FROM {SOURCE}.trial_batch WHERE run_id = ? ORDER BY first_id"
)
SET_CUT = "UPDATE temp.map_run SET cut = ? WHERE theirs = ?"

# The loops are nested in this order, so that rows come and go in the order of their ids.
_NEW = f"""
FROM {SOURCE}.trial_batch b CROSS JOIN temp.map_run ON map_run.theirs = b.run_id AND b.last_id > map_run.cut
"""
OLDEST_NEW = f"SELECT min(max(b.first_id, map_run.cut + 1)) {_NEW}"
COPY_TRIALS = f"""
INSERT INTO main.trial_data (id, config_id, outcome_id, verification_id, resources_id, started_after_ms, median_ns,
                             program, samples)
SELECT d.id + :shift, map_config.ours, map_outcome.ours,
       (SELECT ours FROM temp.map_verification WHERE theirs = d.verification_id),
       (SELECT ours FROM temp.map_resources WHERE theirs = d.resources_id),
       d.started_after_ms, d.median_ns, d.program, d.samples
{_NEW}
CROSS JOIN {SOURCE}.trial_data d ON d.id BETWEEN max(b.first_id, map_run.cut + 1) AND b.last_id
CROSS JOIN temp.map_config ON map_config.theirs = d.config_id
CROSS JOIN temp.map_outcome ON map_outcome.theirs = d.outcome_id
"""
COPY_BATCHES = f"""
INSERT INTO main.trial_batch (first_id, last_id, run_id, signature_id, kernel_id, direction, part, device_id,
                              evidence_id, environment_id, started_us)
SELECT max(b.first_id, map_run.cut + 1) + :shift, b.last_id + :shift, map_run.ours, map_signature.ours,
       map_kernel.ours, b.direction, b.part, map_device.ours, map_device_evidence.ours, map_environment.ours,
       b.started_us
{_NEW}
JOIN temp.map_signature ON map_signature.theirs = b.signature_id
JOIN temp.map_kernel ON map_kernel.theirs = b.kernel_id
JOIN temp.map_device ON map_device.theirs = b.device_id
JOIN temp.map_device_evidence ON map_device_evidence.theirs = b.evidence_id
JOIN temp.map_environment ON map_environment.theirs = b.environment_id
ORDER BY b.first_id
"""
