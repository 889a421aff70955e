"""Schema 6: the row of a trial loses what millions of them need not repeat.

The digest of the code and the time of its compilation become one integer (``programs`` says how); what compiling told
beyond numbers goes to the row of ``resources``, which trials share; a trial starts whole milliseconds after its batch
(rounded down, so that the order stays). The views read as before, but for the digest's length and the times' last
digits.
"""

import sqlite3

from attn_tune.db.compact import unpack_digest
from attn_tune.db.programs import pack_program

_VIEW_TRIGGERS = tuple(
    f"CREATE TRIGGER {view}_refuses_{verb.lower()} INSTEAD OF {verb} ON {view} "
    f"BEGIN SELECT RAISE(ABORT, '{view} is append-only'); END"
    for view in ("trial", "measurement", "output_error")
    for verb in ("INSERT", "UPDATE", "DELETE")
)

_STEPS = (
    "DROP VIEW trial",
    "DROP VIEW measurement",
    "DROP VIEW output_error",
    # Hundreds of thousands of these: 8 bytes tell them apart as well as 16 (chance of a mistake 1e-8 in 600,000).
    "DROP TRIGGER verification_refuses_update",
    "UPDATE verification SET digest = substr(digest, 1, 8)",
    """CREATE TRIGGER verification_refuses_update BEFORE UPDATE ON verification
        BEGIN SELECT RAISE(ABORT, 'verification is append-only'); END""",
    # What compiling for a device that is not here told, as JSON: a shortage's numbers, or a prediction.
    "ALTER TABLE resources ADD COLUMN facts_id INTEGER REFERENCES text (id)",
    "DROP INDEX resources_parts",
    "CREATE INDEX resources_parts ON resources (shared_bytes, registers, spill_bytes, facts_id)",
    """INSERT INTO resources (shared_bytes, registers, spill_bytes, facts_id)
    SELECT DISTINCT r.shared_bytes, r.registers, r.spill_bytes, d.facts_id
    FROM trial_data d LEFT JOIN resources r ON r.id = d.resources_id WHERE d.facts_id IS NOT NULL""",
    "DROP TRIGGER trial_data_measures_what_is_ok",
    "DROP TRIGGER trial_data_refuses_update",
    "DROP TRIGGER trial_data_refuses_delete",
    "ALTER TABLE trial_data RENAME TO wide_trial",
    # program: the digest's first 48 bits, then 16 of the compile time: 4 of exponent, 12 of tenths of milliseconds.
    """CREATE TABLE trial_data (
        id INTEGER PRIMARY KEY,
        config_id INTEGER NOT NULL REFERENCES config (id),
        outcome_id INTEGER NOT NULL REFERENCES outcome (id),
        verification_id INTEGER REFERENCES verification (id),
        resources_id INTEGER REFERENCES resources (id),
        started_after_ms INTEGER NOT NULL,
        median_ns INTEGER,
        program INTEGER,
        samples BLOB,
        CHECK ((median_ns IS NULL) = (samples IS NULL))
    ) STRICT""",
    """INSERT INTO trial_data
    SELECT w.id, w.config_id, w.outcome_id, w.verification_id,
           CASE WHEN w.facts_id IS NULL THEN w.resources_id ELSE (
               SELECT r.id FROM resources r LEFT JOIN resources old ON old.id = w.resources_id
               WHERE r.shared_bytes IS old.shared_bytes AND r.registers IS old.registers
                   AND r.spill_bytes IS old.spill_bytes AND r.facts_id = w.facts_id) END,
           (w.started_after_us - (w.started_after_us % 1000 + 1000) % 1000) / 1000, w.median_ns,
           pack_program(w.code_digest, w.compile_ms), w.samples
    FROM wide_trial w ORDER BY w.id""",
    "DROP TABLE wide_trial",
    """CREATE TRIGGER trial_data_measures_what_is_ok BEFORE INSERT ON trial_data
        WHEN (SELECT status = 'ok' FROM outcome WHERE id = NEW.outcome_id) IS NOT (NEW.samples IS NOT NULL)
        BEGIN SELECT RAISE(ABORT, 'a trial has a measurement if and only if it is ok'); END""",
    *(
        f"CREATE TRIGGER trial_data_refuses_{verb.lower()} BEFORE {verb} ON trial_data "
        "BEGIN SELECT RAISE(ABORT, 'trial_data is append-only'); END"
        for verb in ("UPDATE", "DELETE")
    ),
    """CREATE VIEW trial AS
    SELECT d.id, b.run_id, b.signature_id, d.config_id, b.device_id, b.evidence_id, b.environment_id, o.status,
           o.stage, o.reason_id, o.is_heuristic, r.shared_bytes, r.registers, r.spill_bytes,
           CASE WHEN d.program >> 16 THEN 'b2:' || printf('%012x', d.program >> 16 & 0xffffffffffff)
                ELSE '' END AS code_digest,
           CASE WHEN d.program & 0xffff THEN ((d.program & 0xfff) << (d.program >> 12 & 0xf)) / 10.0
                END AS compile_ms,
           b.started_us + 1000 * d.started_after_ms AS started_us, r.facts_id
    FROM trial_batch b CROSS JOIN trial_data d ON d.id BETWEEN b.first_id AND b.last_id
    JOIN outcome o ON o.id = d.outcome_id
    LEFT JOIN resources r ON r.id = d.resources_id""",
    """CREATE VIEW measurement AS
    SELECT id AS trial_id, (SELECT protocol_id FROM outcome WHERE outcome.id = outcome_id) AS protocol_id,
           (SELECT round_id FROM outcome WHERE outcome.id = outcome_id) AS round_id, median_ns, samples
    FROM trial_data WHERE samples IS NOT NULL""",
    """CREATE VIEW output_error AS
    SELECT d.id AS trial_id, e.position, e.output, e.error, e.allowed
    FROM trial_data d JOIN verification_error e ON e.verification_id = d.verification_id""",
    *_VIEW_TRIGGERS,
)


def narrow(connection: sqlite3.Connection) -> None:
    """Moves every trial into the narrower table; ids and order stay.

    Raises:
      ValueError: trials were lost on the way, which would be a defect here.
    """
    connection.create_function("pack_program", 2, _pack, deterministic=True)
    before = connection.execute("SELECT count(*) FROM trial_data").fetchone()[0]
    for statement in _STEPS:
        connection.execute(statement)
    after = connection.execute("SELECT count(*) FROM trial_data").fetchone()[0]
    if before != after:
        raise ValueError(f"{before} trials became {after}")


def _pack(digest: bytes | str, compile_ms: float | None) -> int | None:
    return pack_program(unpack_digest(digest), compile_ms)
