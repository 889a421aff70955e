"""Schema 4: a trial is one narrow row without an index of its own.

What a stretch of trials has in common (run, problem, device, software) is a row of ``trial_batch``; what recurs
(outcomes, errors, resources) is a row of a dictionary. The names ``trial``, ``measurement`` and ``output_error`` live
on as views with the columns they had, except that samples are coded (``samples``) and no longer counted.
"""

import sqlite3
import struct
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from attn_tune.db.samples import encode_samples
from attn_tune.db.verifications import is_right, verification_digest

TABLES = (
    # Trials whose ids lie between these, and nobody else's. Only the newest batch grows.
    """CREATE TABLE trial_batch (
        first_id INTEGER PRIMARY KEY,
        last_id INTEGER NOT NULL CHECK (last_id >= first_id),
        run_id INTEGER NOT NULL REFERENCES run (id),
        signature_id INTEGER NOT NULL REFERENCES signature (id),
        kernel_id INTEGER NOT NULL REFERENCES kernel (id),
        direction TEXT NOT NULL,
        part TEXT NOT NULL,
        device_id INTEGER NOT NULL REFERENCES device (id),
        evidence_id INTEGER NOT NULL REFERENCES device_evidence (id),
        environment_id INTEGER NOT NULL REFERENCES environment (id),
        started_us INTEGER NOT NULL
    ) STRICT""",
    """CREATE TABLE outcome (
        id INTEGER PRIMARY KEY,
        status TEXT NOT NULL,
        stage TEXT NOT NULL,
        is_heuristic INTEGER NOT NULL,
        reason_id INTEGER REFERENCES text (id),
        protocol_id INTEGER REFERENCES protocol (id),
        round_id TEXT NOT NULL,
        CHECK ((status = 'ok') = (protocol_id IS NOT NULL))
    ) STRICT""",
    """CREATE TABLE resources (
        id INTEGER PRIMARY KEY,
        shared_bytes INTEGER,
        registers INTEGER,
        spill_bytes INTEGER
    ) STRICT""",
    # is_right: every error is within what is allowed.
    """CREATE TABLE verification (
        id INTEGER PRIMARY KEY,
        digest BLOB NOT NULL UNIQUE,
        is_right INTEGER NOT NULL
    ) STRICT""",
    # NULL is NaN: SQLite has no other way to say it.
    """CREATE TABLE verification_error (
        verification_id INTEGER NOT NULL REFERENCES verification (id),
        position INTEGER NOT NULL,
        output TEXT NOT NULL,
        error REAL,
        allowed REAL,
        PRIMARY KEY (verification_id, position)
    ) STRICT, WITHOUT ROWID""",
    # code_digest: the 16 bytes behind "b2:" as a blob, anything else as text.
    """CREATE TABLE trial_data (
        id INTEGER PRIMARY KEY,
        config_id INTEGER NOT NULL REFERENCES config (id),
        outcome_id INTEGER NOT NULL REFERENCES outcome (id),
        verification_id INTEGER REFERENCES verification (id),
        resources_id INTEGER REFERENCES resources (id),
        code_digest ANY NOT NULL,
        compile_ms REAL,
        started_after_us INTEGER NOT NULL,
        median_ns INTEGER,
        samples BLOB,
        CHECK ((median_ns IS NULL) = (samples IS NULL))
    ) STRICT""",
    # What the device went through during one round of finals, whose name the outcomes carry; NULL is unknown.
    """CREATE TABLE round (
        id INTEGER PRIMARY KEY,
        round_id TEXT NOT NULL UNIQUE,
        sm_clock_mhz_low INTEGER,
        sm_clock_mhz_high INTEGER,
        memory_clock_mhz_low INTEGER,
        memory_clock_mhz_high INTEGER,
        temperature_c_low INTEGER,
        temperature_c_high INTEGER,
        power_w_low INTEGER,
        power_w_high INTEGER,
        throttle TEXT NOT NULL,
        repeats INTEGER NOT NULL
    ) STRICT""",
    "CREATE INDEX trial_batch_problem ON trial_batch (signature_id, device_id)",
    "CREATE INDEX trial_batch_run ON trial_batch (run_id)",
    "CREATE INDEX outcome_parts ON outcome (status, stage, is_heuristic, reason_id, protocol_id, round_id)",
    "CREATE UNIQUE INDEX resources_parts ON resources (shared_bytes, registers, spill_bytes)",
)

VIEWS = (
    """CREATE VIEW trial AS
    SELECT d.id, b.run_id, b.signature_id, d.config_id, b.device_id, b.evidence_id, b.environment_id, o.status,
           o.stage, o.reason_id, o.is_heuristic, r.shared_bytes, r.registers, r.spill_bytes,
           CASE typeof(d.code_digest) WHEN 'blob' THEN 'b2:' || lower(hex(d.code_digest))
                ELSE d.code_digest END AS code_digest,
           d.compile_ms, b.started_us + d.started_after_us AS started_us
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
)

_FACTS = ("outcome", "resources", "verification", "verification_error", "trial_data", "round")
TRIGGERS = (
    """CREATE TRIGGER trial_data_measures_what_is_ok BEFORE INSERT ON trial_data
        WHEN (SELECT status = 'ok' FROM outcome WHERE id = NEW.outcome_id) IS NOT (NEW.samples IS NOT NULL)
        BEGIN SELECT RAISE(ABORT, 'a trial has a measurement if and only if it is ok'); END""",
    """CREATE TRIGGER trial_batch_only_grows BEFORE UPDATE ON trial_batch
        WHEN NEW.last_id < OLD.last_id
        BEGIN SELECT RAISE(ABORT, 'trial_batch is append-only'); END""",
    """CREATE TRIGGER trial_batch_is_fixed BEFORE UPDATE OF first_id, run_id, signature_id, kernel_id, direction, part,
        device_id, evidence_id, environment_id, started_us ON trial_batch
        BEGIN SELECT RAISE(ABORT, 'trial_batch is append-only'); END""",
    """CREATE TRIGGER trial_batch_is_kept BEFORE DELETE ON trial_batch
        BEGIN SELECT RAISE(ABORT, 'trial_batch is append-only'); END""",
    *(
        f"CREATE TRIGGER {table}_refuses_{verb.lower()} BEFORE {verb} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        for table in _FACTS
        for verb in ("UPDATE", "DELETE")
    ),
    *(
        f"CREATE TRIGGER {view}_refuses_{verb.lower()} INSTEAD OF {verb} ON {view} "
        f"BEGIN SELECT RAISE(ABORT, '{view} is append-only'); END"
        for view in ("trial", "measurement", "output_error")
        for verb in ("INSERT", "UPDATE", "DELETE")
    ),
)

_MOVE = (
    """INSERT INTO resources (shared_bytes, registers, spill_bytes)
    SELECT DISTINCT shared_bytes, registers, spill_bytes FROM trial
    WHERE coalesce(shared_bytes, registers, spill_bytes) IS NOT NULL""",
    """INSERT INTO outcome (status, stage, is_heuristic, reason_id, protocol_id, round_id)
    SELECT DISTINCT status, stage, is_heuristic, reason_id, protocol_id, coalesce(round_id, '')
    FROM trial LEFT JOIN measurement ON measurement.trial_id = trial.id""",
    """INSERT INTO trial_batch
    WITH known AS (
        SELECT trial.*, config.kernel_id, config.direction, config.part FROM trial JOIN config ON config.id = config_id
    ), edges AS (
        SELECT *, (run_id, signature_id, kernel_id, direction, part, device_id, evidence_id, environment_id) IS NOT
            (lag(run_id) OVER past, lag(signature_id) OVER past, lag(kernel_id) OVER past, lag(direction) OVER past,
             lag(part) OVER past, lag(device_id) OVER past, lag(evidence_id) OVER past, lag(environment_id) OVER past)
            AS is_first
        FROM known WINDOW past AS (ORDER BY id)
    ), numbered AS (
        SELECT *, sum(is_first) OVER (ORDER BY id) AS number FROM edges
    )
    SELECT min(id), max(id), run_id, signature_id, kernel_id, direction, part, device_id, evidence_id, environment_id,
           min(started_us)
    FROM numbered GROUP BY number ORDER BY number""",
    """INSERT INTO trial_data
    SELECT t.id, t.config_id, o.id, v.verification_id, r.id, pack_digest(t.code_digest), t.compile_ms,
           t.started_us - b.started_us, m.median_ns, recode_samples(m.samples, m.median_ns)
    FROM trial_batch b CROSS JOIN trial t ON t.id BETWEEN b.first_id AND b.last_id
    LEFT JOIN measurement m ON m.trial_id = t.id
    LEFT JOIN temp.verified v ON v.trial_id = t.id
    LEFT JOIN resources r ON r.shared_bytes IS t.shared_bytes AND r.registers IS t.registers
        AND r.spill_bytes IS t.spill_bytes
    JOIN outcome o ON o.status = t.status AND o.stage = t.stage AND o.is_heuristic = t.is_heuristic
        AND o.reason_id IS t.reason_id AND o.protocol_id IS m.protocol_id AND o.round_id = coalesce(m.round_id, '')
    ORDER BY t.id""",
    "DROP TABLE temp.verified",
    "DROP TABLE output_error",
    "DROP TABLE measurement",
    "DROP TABLE trial",
)


def compact(connection: sqlite3.Connection) -> None:
    """Moves every trial into the narrow tables; ids, order and all that was recorded stay.

    Raises:
      ValueError: trials were lost on the way, which would be a defect here.
    """
    connection.create_function("pack_digest", 1, pack_digest, deterministic=True)
    connection.create_function("recode_samples", 2, _recode, deterministic=True)
    before = connection.execute("SELECT count(*) FROM trial").fetchone()[0]
    for statement in TABLES:
        connection.execute(statement)
    connection.execute("CREATE TEMP TABLE verified (trial_id INTEGER PRIMARY KEY, verification_id)")
    connection.executemany("INSERT INTO temp.verified VALUES (?, ?)", _verify(connection))
    for statement in _MOVE:
        connection.execute(statement)
    for statement in (*VIEWS, *TRIGGERS):
        connection.execute(statement)
    after = connection.execute("SELECT count(*) FROM trial").fetchone()[0]
    if before != after:
        raise ValueError(f"{before} trials became {after}")


def pack_digest(digest: str) -> bytes | str:
    """A digest of this package as its 16 bytes; any other text as it is."""
    if len(digest) == 35 and digest.startswith("b2:"):
        try:
            packed = bytes.fromhex(digest[3:])
        except ValueError:
            return digest
        if unpack_digest(packed) == digest:
            return packed
    return digest


def unpack_digest(stored: bytes | str) -> str:
    """The inverse of ``pack_digest``."""
    return stored if isinstance(stored, str) else "b2:" + stored.hex()


def _recode(blob: bytes | None, median: int | None) -> bytes | None:
    if blob is None or median is None:
        return None
    return encode_samples(struct.unpack(f"<{len(blob) // 8}q", blob), median)


def _verify(connection: sqlite3.Connection) -> Iterator[tuple[int, int]]:
    known: dict[tuple, int] = {}
    rows = connection.execute(
        "SELECT trial_id, output, error, allowed FROM output_error ORDER BY trial_id, position"
    )
    for trial_id, group in groupby(rows, itemgetter(0)):
        errors = tuple(tuple(row)[1:] for row in group)
        if errors not in known:
            known[errors] = _add_verification(connection, errors)
        yield trial_id, known[errors]


def _add_verification(connection: sqlite3.Connection, errors: tuple) -> int:
    values = (verification_digest(errors), is_right(errors))
    added = connection.execute("INSERT INTO verification (digest, is_right) VALUES (?, ?)", values)
    for position, error in enumerate(errors):
        row = (added.lastrowid, position, *error)
        connection.execute("INSERT INTO verification_error VALUES (?, ?, ?, ?, ?)", row)
    assert added.lastrowid is not None
    return added.lastrowid
