"""Schema 7: an outcome says whether its config repeats its bits, and how many feature problems it passed.

A trial that is ``unproven`` has a measurement too. SQLite cannot change a CHECK in place, so the table is built again
under its name, as SQLite's manual describes; ids stay.
"""

import sqlite3

_STEPS = (
    "DROP VIEW trial",
    "DROP VIEW measurement",
    "DROP TRIGGER trial_data_measures_what_is_ok",
    """CREATE TABLE new_outcome (
        id INTEGER PRIMARY KEY,
        status TEXT NOT NULL,
        stage TEXT NOT NULL,
        is_heuristic INTEGER NOT NULL,
        reason_id INTEGER REFERENCES text (id),
        protocol_id INTEGER REFERENCES protocol (id),
        round_id TEXT NOT NULL,
        repeatable INTEGER CHECK (repeatable IN (0, 1)),
        features INTEGER CHECK (features >= 0),
        CHECK ((status IN ('ok', 'unproven')) = (protocol_id IS NOT NULL))
    ) STRICT""",
    """INSERT INTO new_outcome (id, status, stage, is_heuristic, reason_id, protocol_id, round_id)
    SELECT id, status, stage, is_heuristic, reason_id, protocol_id, round_id FROM outcome""",
    "DROP TABLE outcome",
    "ALTER TABLE new_outcome RENAME TO outcome",
    """CREATE INDEX outcome_parts ON outcome
        (status, stage, is_heuristic, reason_id, protocol_id, round_id, repeatable, features)""",
    """CREATE TRIGGER trial_data_measures_what_ran_right BEFORE INSERT ON trial_data
        WHEN (SELECT protocol_id IS NOT NULL FROM outcome WHERE id = NEW.outcome_id) IS NOT (NEW.samples IS NOT NULL)
        BEGIN SELECT RAISE(ABORT, 'a trial has a measurement if and only if it is ok or unproven'); END""",
    *(
        f"CREATE TRIGGER outcome_refuses_{verb.lower()} BEFORE {verb} ON outcome "
        "BEGIN SELECT RAISE(ABORT, 'outcome is append-only'); END"
        for verb in ("UPDATE", "DELETE")
    ),
    """CREATE VIEW trial AS
    SELECT d.id, b.run_id, b.signature_id, d.config_id, b.device_id, b.evidence_id, b.environment_id, o.status,
           o.stage, o.reason_id, o.is_heuristic, r.shared_bytes, r.registers, r.spill_bytes,
           CASE WHEN d.program >> 16 THEN 'b2:' || printf('%012x', d.program >> 16 & 0xffffffffffff)
                ELSE '' END AS code_digest,
           CASE WHEN d.program & 0xffff THEN ((d.program & 0xfff) << (d.program >> 12 & 0xf)) / 10.0
                END AS compile_ms,
           b.started_us + 1000 * d.started_after_ms AS started_us, r.facts_id, o.repeatable, o.features
    FROM trial_batch b CROSS JOIN trial_data d ON d.id BETWEEN b.first_id AND b.last_id
    JOIN outcome o ON o.id = d.outcome_id
    LEFT JOIN resources r ON r.id = d.resources_id""",
    """CREATE VIEW measurement AS
    SELECT id AS trial_id, (SELECT protocol_id FROM outcome WHERE outcome.id = outcome_id) AS protocol_id,
           (SELECT round_id FROM outcome WHERE outcome.id = outcome_id) AS round_id, median_ns, samples
    FROM trial_data WHERE samples IS NOT NULL""",
    *(
        f"CREATE TRIGGER {view}_refuses_{verb.lower()} INSTEAD OF {verb} ON {view} "
        f"BEGIN SELECT RAISE(ABORT, '{view} is append-only'); END"
        for view in ("trial", "measurement")
        for verb in ("INSERT", "UPDATE", "DELETE")
    ),
    "ALTER TABLE decision ADD COLUMN repeatable INTEGER CHECK (repeatable IN (0, 1))",
    "ALTER TABLE decision ADD COLUMN features INTEGER CHECK (features >= 0)",
)


def add_proof_columns(connection: sqlite3.Connection) -> None:
    """Adds the columns; what is stored already has None in them. Foreign keys are off meanwhile."""
    for statement in _STEPS:
        connection.execute(statement)
