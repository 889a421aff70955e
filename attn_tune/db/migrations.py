"""The lab database's schema, one migration after another; never edited once released, only added to.

Facts are append-only: triggers refuse to change or delete them. Derived tables may be rebuilt at any time.
"""

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite_utils
    from sqlite_utils.migrations import Migrations

APPLICATION_ID = 0x41545455  # "ATTU"
SCHEMA_VERSION = 7  # the number of migrations; kept in PRAGMA user_version

FACT_TABLES = (
    "device",
    "device_evidence",
    "environment",
    "kernel",
    "signature",
    "signature_field",
    "config",
    "protocol",
    "text",
    "trial",
    "measurement",
    "output_error",
)

LAB_TABLES = (
    """CREATE TABLE device (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        platform TEXT NOT NULL,
        family TEXT NOT NULL,
        variant TEXT NOT NULL,
        units INTEGER NOT NULL,
        shared_bytes INTEGER NOT NULL,
        l2_bytes INTEGER NOT NULL,
        clock_mhz INTEGER NOT NULL,
        bandwidth_gbs INTEGER NOT NULL,
        partition TEXT NOT NULL,
        power_watts INTEGER NOT NULL
    ) STRICT""",
    # What does not identify a device (uuid, driver) is a fact of its own: two boards may share one identity.
    """CREATE TABLE device_evidence (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        body TEXT NOT NULL
    ) STRICT""",
    """CREATE TABLE environment (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        jax TEXT NOT NULL,
        jaxlib TEXT NOT NULL,
        triton TEXT NOT NULL,
        compiler TEXT NOT NULL,
        driver TEXT NOT NULL,
        attn_tune TEXT NOT NULL,
        source_hash TEXT NOT NULL
    ) STRICT""",
    """CREATE TABLE kernel (
        id INTEGER PRIMARY KEY,
        op TEXT NOT NULL,
        name TEXT NOT NULL,
        UNIQUE (op, name)
    ) STRICT""",
    """CREATE TABLE signature (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        op TEXT NOT NULL,
        version INTEGER NOT NULL,
        text TEXT NOT NULL
    ) STRICT""",
    """CREATE TABLE signature_field (
        signature_id INTEGER NOT NULL REFERENCES signature (id),
        position INTEGER NOT NULL,
        name TEXT NOT NULL,
        int_value INTEGER,
        text_value TEXT,
        PRIMARY KEY (signature_id, position)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE config (
        id INTEGER PRIMARY KEY,
        kernel_id INTEGER NOT NULL REFERENCES kernel (id),
        direction TEXT NOT NULL,
        part TEXT NOT NULL,
        digest TEXT NOT NULL,
        body TEXT NOT NULL,
        UNIQUE (kernel_id, direction, part, digest)
    ) STRICT""",
    """CREATE TABLE protocol (
        id INTEGER PRIMARY KEY,
        timer TEXT NOT NULL,
        warmup INTEGER NOT NULL,
        flush_l2 INTEGER NOT NULL,
        calls_per_sample INTEGER NOT NULL,
        interleaved INTEGER NOT NULL,
        UNIQUE (timer, warmup, flush_l2, calls_per_sample, interleaved)
    ) STRICT""",
    # One compiler log fails a thousand configs; it is stored once.
    """CREATE TABLE text (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        body TEXT NOT NULL
    ) STRICT""",
    """CREATE TABLE run (
        id INTEGER PRIMARY KEY,
        uid TEXT NOT NULL UNIQUE,
        device_id INTEGER NOT NULL REFERENCES device (id),
        evidence_id INTEGER NOT NULL REFERENCES device_evidence (id),
        environment_id INTEGER NOT NULL REFERENCES environment (id),
        argv TEXT NOT NULL,
        host TEXT NOT NULL,
        pid INTEGER NOT NULL,
        started_us INTEGER NOT NULL,
        heartbeat_us INTEGER NOT NULL,
        ended_us INTEGER,
        status TEXT NOT NULL CHECK (status IN ('running', 'finished', 'interrupted', 'failed'))
    ) STRICT""",
    """CREATE TABLE trial (
        id INTEGER PRIMARY KEY,
        run_id INTEGER NOT NULL REFERENCES run (id),
        signature_id INTEGER NOT NULL REFERENCES signature (id),
        config_id INTEGER NOT NULL REFERENCES config (id),
        device_id INTEGER NOT NULL REFERENCES device (id),
        evidence_id INTEGER NOT NULL REFERENCES device_evidence (id),
        environment_id INTEGER NOT NULL REFERENCES environment (id),
        status TEXT NOT NULL,
        stage TEXT NOT NULL,
        reason_id INTEGER REFERENCES text (id),
        is_heuristic INTEGER NOT NULL,
        shared_bytes INTEGER,
        registers INTEGER,
        spill_bytes INTEGER,
        code_digest TEXT NOT NULL,
        compile_ms REAL,
        started_us INTEGER NOT NULL
    ) STRICT""",
    """CREATE TABLE measurement (
        trial_id INTEGER PRIMARY KEY REFERENCES trial (id),
        protocol_id INTEGER NOT NULL REFERENCES protocol (id),
        round_id TEXT NOT NULL,
        count INTEGER NOT NULL CHECK (count > 0),
        median_ns INTEGER NOT NULL,
        min_ns INTEGER NOT NULL,
        samples BLOB NOT NULL CHECK (length(samples) = 8 * count)
    ) STRICT""",
    # NULL is NaN: SQLite has no other way to say it.
    """CREATE TABLE output_error (
        trial_id INTEGER NOT NULL REFERENCES trial (id),
        position INTEGER NOT NULL,
        output TEXT NOT NULL,
        error REAL,
        allowed REAL,
        PRIMARY KEY (trial_id, position)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE writer (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        token TEXT NOT NULL,
        host TEXT NOT NULL,
        pid INTEGER NOT NULL,
        scope TEXT NOT NULL,
        process_start TEXT NOT NULL,
        heartbeat_us INTEGER NOT NULL
    ) STRICT""",
    "CREATE INDEX trial_problem ON trial (signature_id, device_id, config_id)",
    "CREATE INDEX trial_run ON trial (run_id)",
    """CREATE TRIGGER measurement_needs_ok BEFORE INSERT ON measurement
        WHEN (SELECT status FROM trial WHERE id = NEW.trial_id) IS NOT 'ok'
        BEGIN SELECT RAISE(ABORT, 'a measurement needs a trial that is ok'); END""",
    """CREATE TRIGGER run_identity_is_fixed
        BEFORE UPDATE OF id, uid, device_id, evidence_id, environment_id, argv, host, pid, started_us ON run
        BEGIN SELECT RAISE(ABORT, 'run is append-only'); END""",
    """CREATE TRIGGER run_is_kept BEFORE DELETE ON run
        BEGIN SELECT RAISE(ABORT, 'run is append-only'); END""",
)

DECISION_TABLES = (
    """CREATE TABLE decision (
        signature_id INTEGER NOT NULL REFERENCES signature (id),
        direction TEXT NOT NULL,
        device_id INTEGER NOT NULL REFERENCES device (id),
        rank INTEGER NOT NULL,
        config_id INTEGER NOT NULL REFERENCES config (id),
        environment_id INTEGER NOT NULL REFERENCES environment (id),
        rule TEXT NOT NULL,
        median_ns INTEGER,
        heuristic_ns INTEGER,
        gain REAL,
        regret_bound REAL,
        worst_error REAL,
        ties TEXT NOT NULL,
        samples INTEGER NOT NULL,
        trials INTEGER NOT NULL,
        PRIMARY KEY (signature_id, direction, device_id, rank)
    ) STRICT, WITHOUT ROWID""",
)

IMPORT_TABLES = (
    """CREATE TABLE imported_pack (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        version TEXT NOT NULL,
        manifest TEXT NOT NULL,
        imported_us INTEGER NOT NULL
    ) STRICT""",
    """CREATE TABLE imported_row (
        device_digest TEXT NOT NULL,
        signature TEXT NOT NULL,
        direction TEXT NOT NULL,
        kernel TEXT NOT NULL,
        pack_id INTEGER NOT NULL REFERENCES imported_pack (id),
        rank INTEGER NOT NULL,
        config TEXT NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (device_digest, signature, direction, kernel)
    ) STRICT, WITHOUT ROWID""",
)


@functools.cache
def migrations() -> "Migrations":
    """The migration set. Built on first use: importing sqlite-utils takes up to a second."""
    from sqlite_utils.migrations import Migrations

    lab = Migrations("attn_tune.lab")

    @lab()
    def m001_create_lab(db: "sqlite_utils.Database") -> None:
        _execute_all(db, LAB_TABLES)
        for table in FACT_TABLES:
            for verb in ("UPDATE", "DELETE"):
                db.execute(
                    f"CREATE TRIGGER {table}_refuses_{verb.lower()} BEFORE {verb} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
                )

    @lab()
    def m002_create_decisions(db: "sqlite_utils.Database") -> None:
        _execute_all(db, DECISION_TABLES)

    @lab()
    def m003_create_imported_packs(db: "sqlite_utils.Database") -> None:
        _execute_all(db, IMPORT_TABLES)

    @lab()
    def m004_compact_trials(db: "sqlite_utils.Database") -> None:
        from attn_tune.db.compact import compact

        compact(db.conn)

    @lab()
    def m005_add_compile_facts(db: "sqlite_utils.Database") -> None:
        # What compiling for a device that is not here told, as JSON: a shortage's numbers, or a prediction.
        db.execute("ALTER TABLE trial_data ADD COLUMN facts_id INTEGER REFERENCES text (id)")

    @lab()
    def m006_narrow_trials(db: "sqlite_utils.Database") -> None:
        from attn_tune.db.narrow import narrow

        narrow(db.conn)

    @lab()
    def m007_add_proof_columns(db: "sqlite_utils.Database") -> None:
        from attn_tune.db.proof_columns import add_proof_columns

        add_proof_columns(db.conn)

    return lab


def _execute_all(db: "sqlite_utils.Database", statements: tuple[str, ...]) -> None:
    for statement in statements:
        db.execute(statement)
