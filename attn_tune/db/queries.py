"""SQL of trials, runs, the whole file, frames and imported packs, by name.

``catalog_queries``, ``decision_queries``, ``merge_queries`` and ``garbage_queries`` have the rest; the schema itself is
in ``migrations``.
"""

from collections.abc import Iterable

from attn_tune.schema import Status


def names(statuses: Iterable[Status]) -> str:
    """Statuses as a list for SQL's ``IN``."""
    return ", ".join(f"'{status}'" for status in statuses)


# --- Trials ---

LAST_BATCH = """
SELECT first_id, last_id, run_id, signature_id, kernel_id, direction, part, device_id, evidence_id, environment_id,
       started_us
FROM trial_batch ORDER BY first_id DESC LIMIT 1
"""
ADD_BATCH = """
INSERT INTO trial_batch (first_id, last_id, run_id, signature_id, kernel_id, direction, part, device_id, evidence_id,
                         environment_id, started_us)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
GROW_BATCH = "UPDATE trial_batch SET last_id = ? WHERE first_id = ?"
ADD_TRIAL = """
INSERT INTO trial_data (id, config_id, outcome_id, verification_id, resources_id, started_after_ms, median_ns, program,
                        samples)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

BATCHES = """
SELECT trial_batch.* FROM trial_batch WHERE last_id > :after AND {filters} ORDER BY first_id
"""
# What ``trials`` can be narrowed by: first whole batches, then the trials in them.
BATCH_FILTERS = {
    "op": "trial_batch.kernel_id IN (SELECT id FROM kernel WHERE op = :op)",
    "kernel": """trial_batch.kernel_id IN
        (SELECT id FROM kernel WHERE name = :kernel OR op || '/' || name = :kernel)""",
    "direction": "trial_batch.direction = :direction",
    "signature": "trial_batch.signature_id = (SELECT id FROM signature WHERE text = :signature)",
    "device": "trial_batch.device_id IN (SELECT id FROM device WHERE digest = :device OR variant = :device)",
    "run": "trial_batch.run_id = :run",
}
TRIAL_FILTERS = {"status": "outcome.status = :status"}
_TRIAL_COLUMNS = """
SELECT trial_data.*, config.body AS config_body, outcome.status, outcome.stage, outcome.is_heuristic,
       outcome.protocol_id, outcome.round_id, outcome.repeatable, outcome.features, text.body AS reason,
       resources.shared_bytes, resources.registers, resources.spill_bytes, facts.body AS facts
FROM trial_data
JOIN config ON config.id = trial_data.config_id
JOIN outcome ON outcome.id = trial_data.outcome_id
LEFT JOIN text ON text.id = outcome.reason_id
LEFT JOIN resources ON resources.id = trial_data.resources_id
LEFT JOIN text AS facts ON facts.id = resources.facts_id
"""
TRIALS_PAGE = (
    _TRIAL_COLUMNS
    + """
WHERE trial_data.id > :after AND trial_data.id <= :last AND {filters}
ORDER BY trial_data.id
LIMIT :page
"""
)
# A batch comes before its trials: the other way round, SQLite would look for the batch of each.
_BATCHED = """
FROM trial_batch
CROSS JOIN trial_data ON trial_data.id BETWEEN trial_batch.first_id AND trial_batch.last_id
JOIN outcome ON outcome.id = trial_data.outcome_id
"""

# The newest trial of each (part, config) speaks: rows come oldest first.
MEASURED = f"""
SELECT trial_batch.part, config.digest, outcome.status, outcome.repeatable
{_BATCHED}
JOIN config ON config.id = trial_data.config_id
WHERE trial_batch.signature_id = (SELECT id FROM signature WHERE digest = :signature)
  AND trial_batch.device_id = (SELECT id FROM device WHERE digest = :device)
  AND trial_batch.environment_id = (SELECT id FROM environment WHERE digest = :environment)
  AND trial_batch.kernel_id = (SELECT id FROM kernel WHERE op = :op AND name = :kernel)
  AND trial_batch.direction = :direction
ORDER BY trial_data.id
"""

# Times that searches saw, oldest first. What was refused beforehand, or only compiled, is no experience.
PAST = f"""
SELECT kernel.op, kernel.name, trial_batch.direction, trial_batch.part, trial_batch.signature_id,
       device.digest AS device, environment.digest AS environment, trial_data.config_id, config.digest AS config,
       config.body, outcome.is_heuristic, trial_data.median_ns
{_BATCHED}
JOIN config ON config.id = trial_data.config_id
JOIN kernel ON kernel.id = trial_batch.kernel_id
JOIN device ON device.id = trial_batch.device_id
JOIN environment ON environment.id = trial_batch.environment_id
WHERE outcome.stage = 'search' AND outcome.status NOT IN ('unsupported', 'compiled', 'predicted') AND {{filters}}
ORDER BY trial_data.id
"""
PAST_FILTERS = {
    "kernel": "kernel.op || '/' || kernel.name = :kernel",
    "direction": "trial_batch.direction = :direction",
    "part": "trial_batch.part = :part",
    "family": "device.family = :family",
}

# --- Runs and the writer lock ---

ADD_RUN = """
INSERT INTO run (uid, device_id, evidence_id, environment_id, argv, host, pid, started_us, heartbeat_us, status)
VALUES (:uid, :device_id, :evidence_id, :environment_id, :argv, :host, :pid, :now, :now, 'running')
"""
END_RUN = """
UPDATE run SET status = :status, ended_us = :now, heartbeat_us = :now WHERE id = :run AND status = 'running'
"""
BEAT_RUN = "UPDATE run SET heartbeat_us = :now WHERE id = :run AND status = 'running'"
ABANDON_RUNS = """
UPDATE run SET status = 'interrupted', ended_us = heartbeat_us WHERE status = 'running'
"""
GET_RUN_STATUS = "SELECT status FROM run WHERE id = ?"
# What runs cost a config, everything in: starts, references, finals.
PACE = f"""
SELECT (run.ended_us - run.started_us) / 1e6 / tried AS seconds
FROM (
    SELECT trial_batch.run_id, count(*) AS tried
    {_BATCHED}
    WHERE outcome.stage = 'search' AND outcome.status <> 'unsupported'
        AND trial_batch.run_id IN (
            SELECT run.id FROM run JOIN device ON device.id = run.device_id
            WHERE device.digest = :device AND run.ended_us > run.started_us)
    GROUP BY trial_batch.run_id HAVING count(*) >= :least
) JOIN run ON run.id = run_id ORDER BY run.id DESC LIMIT 1
"""
LAST_RUN = "SELECT * FROM run ORDER BY status = 'running' DESC, id DESC LIMIT 1"
COUNT_STATUSES = f"""
SELECT outcome.status, count(*) AS count {_BATCHED}
WHERE trial_batch.run_id = ? GROUP BY outcome.status ORDER BY outcome.status
"""

GET_WRITER = "SELECT token, host, pid, scope, process_start, heartbeat_us FROM writer"
SET_WRITER = """
INSERT OR REPLACE INTO writer (id, token, host, pid, scope, process_start, heartbeat_us)
VALUES (1, :token, :host, :pid, :scope, :process_start, :now)
"""
BEAT_WRITER = "UPDATE writer SET heartbeat_us = :now WHERE token = :token"
DROP_WRITER = "DELETE FROM writer WHERE token = ?"

# --- The whole file ---

RELATIONS = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')"
COUNT_ROWS = "SELECT count(*) FROM {table}"
DIGESTED = "SELECT id, digest, {column} AS body FROM {table}"
PREDICTED_WITHOUT_PREDICTION = """
SELECT count(*) FROM trial_data JOIN outcome ON outcome.id = trial_data.outcome_id
WHERE (outcome.status = 'predicted') <> coalesce(trial_data.resources_id IN (
    SELECT resources.id FROM resources JOIN text ON text.id = resources.facts_id
    WHERE json_type(text.body, '$.prediction') = 'object'), FALSE)
"""
OK_WITHOUT_MEASUREMENT = f"""
SELECT count(*) FROM trial_data JOIN outcome ON outcome.id = trial_data.outcome_id
WHERE (outcome.status IN ({names(s for s in Status if s.is_measured)})) <> (trial_data.samples IS NOT NULL)
"""
OVERLAPPING_BATCHES = """
SELECT count(*) FROM (SELECT first_id <= lag(last_id) OVER (ORDER BY first_id) AS overlaps FROM trial_batch)
WHERE overlaps
"""
COUNT_BATCHED = """
SELECT count(*) FROM trial_batch CROSS JOIN trial_data
ON trial_data.id BETWEEN trial_batch.first_id AND trial_batch.last_id
"""

# --- Frames ---

RUNS = f"""
SELECT run.*, coalesce(counted.trials, 0) AS trials, coalesce(counted.ok, 0) AS ok
FROM run LEFT JOIN (
    SELECT trial_batch.run_id, count(*) AS trials, sum(outcome.status = 'ok') AS ok
    {_BATCHED}
    GROUP BY trial_batch.run_id
) AS counted ON counted.run_id = run.id ORDER BY run.id
"""
_TRIAL_TABLES = f"""
{_BATCHED}
JOIN kernel ON kernel.id = trial_batch.kernel_id
JOIN signature ON signature.id = trial_batch.signature_id
JOIN device ON device.id = trial_batch.device_id
LEFT JOIN text ON text.id = outcome.reason_id
WHERE {{filters}}
"""
COVERAGE = f"""
SELECT kernel.op, kernel.op || '/' || kernel.name AS kernel, trial_batch.direction, signature.text AS signature,
       device.variant AS device, count(*) AS trials, sum(outcome.status = 'ok') AS ok,
       count(DISTINCT trial_data.config_id) AS configs,
       max(trial_batch.started_us + 1000 * trial_data.started_after_ms) AS newest_us,
       EXISTS (SELECT 1 FROM decision WHERE decision.signature_id = trial_batch.signature_id
               AND decision.direction = trial_batch.direction AND decision.device_id = trial_batch.device_id) AS decided
{_TRIAL_TABLES}
GROUP BY trial_batch.signature_id, trial_batch.direction, trial_batch.device_id, kernel.id
ORDER BY signature.text, trial_batch.direction, device.variant, kernel.name
"""
FAILURES = f"""
SELECT kernel.op || '/' || kernel.name AS kernel, trial_batch.direction, outcome.status, text.body AS reason,
       count(*) AS trials, count(DISTINCT trial_batch.signature_id) AS signatures
{_TRIAL_TABLES} AND outcome.status NOT IN ({names(s for s in Status if s.is_fine)})
GROUP BY kernel.id, trial_batch.direction, outcome.status, text.id
ORDER BY trials DESC, kernel.name, trial_batch.direction, outcome.status, reason
"""

# --- Imported packs ---

ADD_PACK = """
INSERT OR IGNORE INTO imported_pack (digest, name, version, manifest, imported_us) VALUES (?, ?, ?, ?, ?)
"""
FIND_PACK = "SELECT id FROM imported_pack WHERE digest = ?"
GET_IMPORTED = """
SELECT imported_row.body, imported_row.pack_id, imported_pack.name, imported_pack.manifest
FROM imported_row JOIN imported_pack ON imported_pack.id = imported_row.pack_id
WHERE imported_row.device_digest = ? AND imported_row.signature = ? AND imported_row.direction = ?
ORDER BY imported_row.rank
"""
DROP_IMPORTED = """
DELETE FROM imported_row WHERE device_digest = ? AND signature = ? AND direction = ?
"""
ADD_IMPORTED = """
INSERT INTO imported_row (device_digest, signature, direction, kernel, pack_id, rank, config, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
IMPORTED = """
SELECT imported_pack.name AS pack, imported_pack.version, imported_row.device_digest,
       json_extract(imported_pack.manifest, '$.devices."' || imported_row.device_digest || '".variant') AS device,
       json_extract(imported_pack.manifest, '$.devices."' || imported_row.device_digest || '".family') AS family,
       imported_row.signature, imported_row.direction,
       json_extract(imported_row.body, '$.op') || '/' || imported_row.kernel AS kernel, imported_row.rank,
       imported_row.config,
       json_extract(imported_row.body, '$.state') AS state,
       json_extract(imported_row.body, '$.median_ns') AS median_ns
FROM imported_row JOIN imported_pack ON imported_pack.id = imported_row.pack_id
ORDER BY imported_row.signature, imported_row.direction, imported_row.device_digest, imported_row.rank
"""

# --- Merging ---

FIND_RUN = "SELECT id FROM run WHERE uid = ?"
COUNT_TRIALS = """
SELECT count(*) FROM trial_batch
CROSS JOIN trial_data ON trial_data.id BETWEEN trial_batch.first_id AND trial_batch.last_id
WHERE trial_batch.run_id = ?
"""
# Rows of this database's own runs that go on are left alone.
UPDATE_MERGED_RUN = """
UPDATE run SET status = :status, ended_us = :ended_us, heartbeat_us = :heartbeat_us
WHERE id = :run AND heartbeat_us <= :heartbeat_us AND NOT EXISTS (
    SELECT 1 FROM writer WHERE writer.host = run.host AND writer.pid = run.pid AND run.status = 'running')
"""
