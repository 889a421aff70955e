"""SQL of decisions: the trials that one rests on, and the table of those that were made."""

from attn_tune.db.queries import names
from attn_tune.schema import Status

PROBLEMS = """
SELECT DISTINCT trial_batch.signature_id, signature.text, trial_batch.direction, trial_batch.device_id, device.digest
FROM trial_batch
JOIN signature ON signature.id = trial_batch.signature_id
JOIN device ON device.id = trial_batch.device_id
ORDER BY signature.text, trial_batch.direction, device.digest
"""
# The outcomes that a decision may depend on, by the ids of one batch. ``telling`` are those of finals and of untuned
# configs, ``never`` those that bar a config, ``ordinary`` all others: so few that a search of them is quicker than one
# of the notable. ``wrong`` are the verifications that failed. ``unproven`` were timed and are no evidence. ``refused``
# are the unproven, and those whose bits differed from run to run in a sweep that did not allow that.
PREPARE_SHORTLISTS = (
    "CREATE TEMP TABLE IF NOT EXISTS telling (id INTEGER PRIMARY KEY)",
    "CREATE TEMP TABLE IF NOT EXISTS never (id INTEGER PRIMARY KEY)",
    "CREATE TEMP TABLE IF NOT EXISTS ordinary (id INTEGER PRIMARY KEY)",
    "CREATE TEMP TABLE IF NOT EXISTS wrong (id INTEGER PRIMARY KEY)",
    "CREATE TEMP TABLE IF NOT EXISTS unproven (id INTEGER PRIMARY KEY)",
    "CREATE TEMP TABLE IF NOT EXISTS refused (id INTEGER PRIMARY KEY)",
    """INSERT OR IGNORE INTO temp.telling
    SELECT id FROM main.outcome WHERE status = 'ok' AND (is_heuristic OR round_id <> '')""",
    f"""INSERT OR IGNORE INTO temp.never
    SELECT id FROM main.outcome WHERE status IN ({names(s for s in Status if s.bars)})""",
    "INSERT OR IGNORE INTO temp.unproven SELECT id FROM main.outcome WHERE status = 'unproven'",
    """INSERT OR IGNORE INTO temp.refused
    SELECT id FROM main.outcome WHERE status = 'unproven' OR (status = 'unsupported' AND repeatable = 0)""",
    """INSERT OR IGNORE INTO temp.ordinary
    SELECT id FROM main.outcome
    WHERE id NOT IN temp.telling AND id NOT IN temp.never AND id NOT IN temp.refused""",
    "INSERT OR IGNORE INTO temp.wrong SELECT id FROM main.verification WHERE NOT is_right",
)
_IN_RANGE = "FROM trial_data WHERE id BETWEEN :first AND :last"
_TIMED = f"{_IN_RANGE} AND median_ns IS NOT NULL AND outcome_id NOT IN temp.unproven"
SUMMARY = f"SELECT count(*) AS count, max(started_after_ms) AS newest_ms {_IN_RANGE}"
NEWEST_OK = f"SELECT max(started_after_ms) {_TIMED}"
ALL_IDS = f"SELECT id {_IN_RANGE}"
# From behind: the newest trial is mostly the last.
ID_AT = f"SELECT id {_IN_RANGE} AND started_after_ms = :after_ms ORDER BY id DESC LIMIT 1"
OK_ID_AT = f"""
SELECT id {_TIMED} AND started_after_ms = :after_ms ORDER BY id DESC LIMIT 1
"""
# Few of many: what a search timed, and was right, is neither.
NOTABLE = f"""
SELECT id, config_id, outcome_id IN temp.telling AS tells,
       outcome_id IN temp.never OR verification_id IN temp.wrong AS bars, outcome_id IN temp.refused AS refuses
{_IN_RANGE} AND (outcome_id NOT IN temp.ordinary OR verification_id IN temp.wrong)
"""
FASTEST = f"""
SELECT config_id, min(median_ns) {_TIMED} GROUP BY config_id
"""
IDS_OF_CONFIGS = f"""
SELECT id {_TIMED} AND config_id IN (SELECT value FROM json_each(:configs))
"""
PROBLEM_BATCHES = """
SELECT * FROM trial_batch WHERE signature_id = ? AND device_id = ? AND direction = ? ORDER BY first_id
"""
DROP_DECISIONS = "DELETE FROM decision WHERE signature_id = ? AND direction = ? AND device_id = ?"
ADD_DECISION = """
INSERT INTO decision (signature_id, direction, device_id, rank, config_id, environment_id, rule, median_ns,
                      heuristic_ns, gain, regret_bound, worst_error, ties, samples, trials, repeatable, features)
VALUES (:signature_id, :direction, :device_id, :rank, :config_id, :environment_id, :rule, :median_ns,
        :heuristic_ns, :gain, :regret_bound, :worst_error, :ties, :samples, :trials, :repeatable, :features)
"""
# What a row says beyond its key. Every column more is a fortieth of a lookup.
_DECISION_COLUMNS = """
decision.config_id, decision.environment_id, decision.rule, decision.median_ns, decision.heuristic_ns, decision.gain,
decision.regret_bound, decision.worst_error, decision.ties, decision.samples, decision.trials,
decision.repeatable, decision.features
"""
DECISIONS = f"""
SELECT decision.signature_id, decision.direction, decision.device_id, decision.rank,
       kernel.op || '/' || kernel.name AS kernel, config.body AS config_body, {_DECISION_COLUMNS}
FROM decision
JOIN config ON config.id = decision.config_id
JOIN kernel ON kernel.id = config.kernel_id
JOIN signature ON signature.id = decision.signature_id
JOIN device ON device.id = decision.device_id
WHERE {{filters}}
ORDER BY signature.text, decision.direction, device.digest, decision.rank
"""
DATA_VERSION = "PRAGMA data_version"
ONE_DECISION = f"""
SELECT {_DECISION_COLUMNS} FROM decision WHERE signature_id = ? AND direction = ? AND device_id = ? AND rank = ?
"""
DECISION_FILTERS = {
    "op": "kernel.op = :op",
    "kernel": "(kernel.name = :kernel OR kernel.op || '/' || kernel.name = :kernel)",
    "direction": "decision.direction = :direction",
    "signature": "signature.text = :signature",
    "device": "(device.digest = :device OR device.variant = :device)",
    "rank": "decision.rank = :rank",
}
FINDINGS_BY_ID = """
SELECT trial_data.id, config_id, status, is_heuristic, round_id, verification_id, started_after_ms, median_ns, samples,
       repeatable, features
FROM trial_data JOIN outcome ON outcome.id = outcome_id
WHERE trial_data.id IN (SELECT value FROM json_each(?)) ORDER BY trial_data.id
"""
