"""Every SQL statement of the lab database, by name. The schema itself is in ``migrations``."""

# --- Catalog: rows that are written once and found by what they say ---

FIND_DEVICE = "SELECT id FROM device WHERE digest = ?"
ADD_DEVICE = """
INSERT INTO device (digest, platform, family, variant, units, shared_bytes, l2_bytes, clock_mhz, bandwidth_gbs,
                    partition, power_watts)
VALUES (:digest, :platform, :family, :variant, :units, :shared_bytes, :l2_bytes, :clock_mhz, :bandwidth_gbs,
        :partition, :power_watts)
"""
GET_DEVICE = "SELECT * FROM device WHERE id = ?"

FIND_EVIDENCE = "SELECT id FROM device_evidence WHERE digest = ?"
ADD_EVIDENCE = "INSERT INTO device_evidence (digest, body) VALUES (?, ?)"
GET_EVIDENCE = "SELECT body FROM device_evidence WHERE id = ?"

FIND_ENVIRONMENT = "SELECT id FROM environment WHERE digest = ?"
ADD_ENVIRONMENT = """
INSERT INTO environment (digest, jax, jaxlib, triton, compiler, driver, attn_tune, source_hash)
VALUES (:digest, :jax, :jaxlib, :triton, :compiler, :driver, :attn_tune, :source_hash)
"""
GET_ENVIRONMENT = "SELECT * FROM environment WHERE id = ?"

FIND_KERNEL = "SELECT id FROM kernel WHERE op = ? AND name = ?"
ADD_KERNEL = "INSERT INTO kernel (op, name) VALUES (?, ?)"

FIND_SIGNATURE = "SELECT id FROM signature WHERE digest = ?"
ADD_SIGNATURE = "INSERT INTO signature (digest, op, version, text) VALUES (?, ?, ?, ?)"
ADD_SIGNATURE_FIELD = """
INSERT INTO signature_field (signature_id, position, name, int_value, text_value) VALUES (?, ?, ?, ?, ?)
"""
GET_SIGNATURE = "SELECT op, version FROM signature WHERE id = ?"
GET_SIGNATURE_FIELDS = """
SELECT name, int_value, text_value FROM signature_field WHERE signature_id = ? ORDER BY position
"""

FIND_CONFIG = """
SELECT id FROM config WHERE kernel_id = ? AND direction = ? AND part = ? AND digest = ?
"""
ADD_CONFIG = """
INSERT INTO config (kernel_id, direction, part, digest, body) VALUES (?, ?, ?, ?, ?)
"""

FIND_PROTOCOL = """
SELECT id FROM protocol
WHERE timer = ? AND warmup = ? AND flush_l2 = ? AND calls_per_sample = ? AND interleaved = ?
"""
ADD_PROTOCOL = """
INSERT INTO protocol (timer, warmup, flush_l2, calls_per_sample, interleaved) VALUES (?, ?, ?, ?, ?)
"""

FIND_TEXT = "SELECT id FROM text WHERE digest = ?"
ADD_TEXT = "INSERT INTO text (digest, body) VALUES (?, ?)"

# --- Trials ---

ADD_TRIAL = """
INSERT INTO trial (run_id, signature_id, config_id, device_id, evidence_id, environment_id, status, stage, reason_id,
                   is_heuristic, shared_bytes, registers, spill_bytes, code_digest, compile_ms, started_us)
VALUES (:run_id, :signature_id, :config_id, :device_id, :evidence_id, :environment_id, :status, :stage, :reason_id,
        :is_heuristic, :shared_bytes, :registers, :spill_bytes, :code_digest, :compile_ms, :started_us)
"""
ADD_MEASUREMENT = """
INSERT INTO measurement (trial_id, protocol_id, round_id, count, median_ns, min_ns, samples)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
ADD_OUTPUT_ERROR = """
INSERT INTO output_error (trial_id, position, output, error, allowed) VALUES (?, ?, ?, ?, ?)
"""

TRIALS_PAGE = """
SELECT trial.*, kernel.op, kernel.name AS kernel_name, config.direction, config.part, config.body AS config_body,
       text.body AS reason, measurement.samples, measurement.round_id, protocol.timer, protocol.warmup,
       protocol.flush_l2, protocol.calls_per_sample, protocol.interleaved
FROM trial
JOIN config ON config.id = trial.config_id
JOIN kernel ON kernel.id = config.kernel_id
LEFT JOIN text ON text.id = trial.reason_id
LEFT JOIN measurement ON measurement.trial_id = trial.id
LEFT JOIN protocol ON protocol.id = measurement.protocol_id
WHERE trial.id > :after AND {filters}
ORDER BY trial.id
LIMIT :page
"""
# What ``trials`` can be narrowed by; joined with AND into the statement above.
TRIAL_FILTERS = {
    "op": "kernel.op = :op",
    "kernel": "(kernel.name = :kernel OR kernel.op || '/' || kernel.name = :kernel)",
    "direction": "config.direction = :direction",
    "signature": "trial.signature_id = (SELECT id FROM signature WHERE text = :signature)",
    "device": "trial.device_id IN (SELECT id FROM device WHERE digest = :device OR variant = :device)",
    "run": "trial.run_id = :run",
    "status": "trial.status = :status",
}
ERRORS_OF = """
SELECT trial_id, output, error, allowed FROM output_error
WHERE trial_id IN (SELECT value FROM json_each(?)) ORDER BY trial_id, position
"""

# The newest trial of each (part, config) speaks: rows come oldest first.
MEASURED = """
SELECT config.part, config.digest, trial.status
FROM trial
JOIN config ON config.id = trial.config_id
JOIN kernel ON kernel.id = config.kernel_id
WHERE trial.signature_id = (SELECT id FROM signature WHERE digest = :signature)
  AND trial.device_id = (SELECT id FROM device WHERE digest = :device)
  AND trial.environment_id = (SELECT id FROM environment WHERE digest = :environment)
  AND kernel.op = :op AND kernel.name = :kernel AND config.direction = :direction
ORDER BY trial.id
"""

# Times that searches saw, oldest first. What was refused beforehand, or only compiled, is no experience.
PAST = """
SELECT kernel.op, kernel.name, config.direction, config.part, trial.signature_id, device.digest AS device,
       environment.digest AS environment, trial.config_id, config.digest AS config, config.body, trial.is_heuristic,
       measurement.median_ns
FROM trial
JOIN config ON config.id = trial.config_id
JOIN kernel ON kernel.id = config.kernel_id
JOIN device ON device.id = trial.device_id
JOIN environment ON environment.id = trial.environment_id
LEFT JOIN measurement ON measurement.trial_id = trial.id
WHERE trial.stage = 'search' AND trial.status NOT IN ('unsupported', 'compiled', 'predicted') AND {filters}
ORDER BY trial.id
"""
PAST_FILTERS = {
    "kernel": "kernel.op || '/' || kernel.name = :kernel",
    "direction": "config.direction = :direction",
    "part": "config.part = :part",
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
PACE = """
SELECT (run.ended_us - run.started_us) / 1e6 / count(trial.id) AS seconds
FROM run JOIN device ON device.id = run.device_id JOIN trial ON trial.run_id = run.id
WHERE device.digest = :device AND run.ended_us > run.started_us
    AND trial.stage = 'search' AND trial.status <> 'unsupported'
GROUP BY run.id HAVING count(trial.id) >= :least ORDER BY run.id DESC LIMIT 1
"""
LAST_RUN = "SELECT * FROM run ORDER BY status = 'running' DESC, id DESC LIMIT 1"
COUNT_STATUSES = (
    "SELECT status, count(*) AS count FROM trial WHERE run_id = ? GROUP BY status ORDER BY status"
)

GET_WRITER = "SELECT token, host, pid, scope, process_start, heartbeat_us FROM writer"
SET_WRITER = """
INSERT OR REPLACE INTO writer (id, token, host, pid, scope, process_start, heartbeat_us)
VALUES (1, :token, :host, :pid, :scope, :process_start, :now)
"""
BEAT_WRITER = "UPDATE writer SET heartbeat_us = :now WHERE token = :token"
DROP_WRITER = "DELETE FROM writer WHERE token = ?"

# --- The whole file ---

COUNT_ROWS = "SELECT count(*) FROM {table}"
DIGESTED = "SELECT id, digest, {column} AS body FROM {table}"
OK_WITHOUT_MEASUREMENT = """
SELECT count(*) FROM trial LEFT JOIN measurement ON measurement.trial_id = trial.id
WHERE (trial.status = 'ok') <> (measurement.trial_id IS NOT NULL)
"""

# --- Decisions ---

PROBLEMS = """
SELECT DISTINCT trial.signature_id, signature.text, config.direction, trial.device_id, device.digest
FROM trial
JOIN config ON config.id = trial.config_id
JOIN signature ON signature.id = trial.signature_id
JOIN device ON device.id = trial.device_id
ORDER BY signature.text, config.direction, device.digest
"""
DROP_DECISIONS = "DELETE FROM decision WHERE signature_id = ? AND direction = ? AND device_id = ?"
ADD_DECISION = """
INSERT INTO decision (signature_id, direction, device_id, rank, config_id, environment_id, rule, median_ns,
                      heuristic_ns, gain, regret_bound, worst_error, ties, samples, trials)
VALUES (:signature_id, :direction, :device_id, :rank, :config_id, :environment_id, :rule, :median_ns,
        :heuristic_ns, :gain, :regret_bound, :worst_error, :ties, :samples, :trials)
"""
DECISIONS = """
SELECT decision.*, kernel.op, kernel.name AS kernel_name, config.body AS config_body
FROM decision
JOIN config ON config.id = decision.config_id
JOIN kernel ON kernel.id = config.kernel_id
JOIN signature ON signature.id = decision.signature_id
JOIN device ON device.id = decision.device_id
WHERE {filters}
ORDER BY signature.text, decision.direction, device.digest, decision.rank
"""
DECISION_FILTERS = {
    "op": "kernel.op = :op",
    "kernel": "(kernel.name = :kernel OR kernel.op || '/' || kernel.name = :kernel)",
    "direction": "decision.direction = :direction",
    "signature": "signature.text = :signature",
    "device": "(device.digest = :device OR device.variant = :device)",
    "rank": "decision.rank = :rank",
}

# --- Frames ---

RUNS = """
SELECT run.*, count(trial.id) AS trials, coalesce(sum(trial.status = 'ok'), 0) AS ok
FROM run LEFT JOIN trial ON trial.run_id = run.id
GROUP BY run.id ORDER BY run.id
"""
_TRIAL_TABLES = """
FROM trial
JOIN config ON config.id = trial.config_id
JOIN kernel ON kernel.id = config.kernel_id
JOIN signature ON signature.id = trial.signature_id
JOIN device ON device.id = trial.device_id
LEFT JOIN text ON text.id = trial.reason_id
WHERE {filters}
"""
COVERAGE = f"""
SELECT kernel.op, kernel.op || '/' || kernel.name AS kernel, config.direction, signature.text AS signature,
       device.variant AS device, count(*) AS trials, sum(trial.status = 'ok') AS ok,
       count(DISTINCT config.id) AS configs, max(trial.started_us) AS newest_us,
       EXISTS (SELECT 1 FROM decision WHERE decision.signature_id = trial.signature_id
               AND decision.direction = config.direction AND decision.device_id = trial.device_id) AS decided
{_TRIAL_TABLES}
GROUP BY trial.signature_id, config.direction, trial.device_id, kernel.id
ORDER BY signature.text, config.direction, device.variant, kernel.name
"""
FAILURES = f"""
SELECT kernel.op || '/' || kernel.name AS kernel, config.direction, trial.status, text.body AS reason,
       count(*) AS trials, count(DISTINCT trial.signature_id) AS signatures
{_TRIAL_TABLES} AND trial.status NOT IN ('ok', 'compiled', 'predicted')
GROUP BY kernel.id, config.direction, trial.status, text.id
ORDER BY trials DESC, kernel.name, config.direction, trial.status, reason
"""

# --- Imported packs ---

ADD_PACK = """
INSERT OR IGNORE INTO imported_pack (digest, name, version, manifest, imported_us) VALUES (?, ?, ?, ?, ?)
"""
FIND_PACK = "SELECT id FROM imported_pack WHERE digest = ?"
GET_IMPORTED = """
SELECT kernel, rank, config FROM imported_row WHERE device_digest = ? AND signature = ? AND direction = ?
"""
DROP_IMPORTED = """
DELETE FROM imported_row WHERE device_digest = ? AND signature = ? AND direction = ?
"""
ADD_IMPORTED = """
INSERT INTO imported_row (device_digest, signature, direction, kernel, pack_id, rank, config, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
IMPORTED = """
SELECT imported_pack.name AS pack, imported_pack.version, imported_row.device_digest, imported_row.signature,
       imported_row.direction, imported_row.kernel, imported_row.rank, imported_row.config,
       json_extract(imported_row.body, '$.state') AS state,
       json_extract(imported_row.body, '$.median_ns') AS median_ns
FROM imported_row JOIN imported_pack ON imported_pack.id = imported_row.pack_id
ORDER BY imported_row.signature, imported_row.direction, imported_row.device_digest, imported_row.rank
"""

# --- Merging ---

FIND_RUN = "SELECT id FROM run WHERE uid = ?"
COUNT_TRIALS = "SELECT count(*) FROM trial WHERE run_id = ?"
# Rows of this database's own runs that go on are left alone.
UPDATE_MERGED_RUN = """
UPDATE run SET status = :status, ended_us = :ended_us, heartbeat_us = :heartbeat_us
WHERE id = :run AND heartbeat_us <= :heartbeat_us AND NOT EXISTS (
    SELECT 1 FROM writer WHERE writer.host = run.host AND writer.pid = run.pid AND run.status = 'running')
"""
