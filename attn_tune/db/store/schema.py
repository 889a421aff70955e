"""The lab database's schema. Comments say what a column holds: SQLite keeps them, and docs/database.md is made of them.

Facts are append-only: triggers refuse to change or delete them. Derived tables may be rebuilt at any time.
"""

import functools
import sqlite3
from collections.abc import Iterable, Mapping

from attn_tune.schema import Status

APPLICATION_ID = 0x41545455  # "ATTU"
SCHEMA_VERSION = 1  # kept in PRAGMA user_version

# Rows that are never changed or deleted, but by garbage collection.
FACTS = ("device", "environment", "signature", "trial")


def status_list(statuses: Iterable[Status]) -> str:
    """Statuses as a list for SQL's ``IN``."""
    return ", ".join(f"'{status}'" for status in statuses)


_MEASURED = status_list(s for s in Status if s.is_measured)
_FAILED = status_list(s for s in Status if s.is_failure)

TABLES = (
    """CREATE TABLE device ( -- A device as it was seen: its identity, and what does not identify it.
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- The number of the row; never given twice.
    digest TEXT NOT NULL, -- The digest of the identity; equal for equal devices.
    platform TEXT NOT NULL, -- cpu, cuda, rocm or tpu.
    family TEXT NOT NULL, -- The architecture: sm_90, v6e, x86_64.
    variant TEXT NOT NULL, -- The name: nvidia-h200.
    units INTEGER NOT NULL, -- Multiprocessors, TensorCores or CPU cores.
    shared_bytes INTEGER NOT NULL, -- On-chip memory that one program may use; 0 is unknown.
    l2_bytes INTEGER NOT NULL, -- Last-level cache; 0 is unknown.
    clock_mhz INTEGER NOT NULL, -- Maximum core clock; 0 is unknown.
    bandwidth_gbs INTEGER NOT NULL, -- Peak memory bandwidth in GB/s; 0 is unknown.
    partition TEXT NOT NULL, -- The slice of a divided GPU; empty for a whole device.
    power_watts INTEGER NOT NULL, -- The power limit, rounded to 50 W; 0 is unknown.
    evidence TEXT NOT NULL, -- JSON pairs that do not identify it: uuid, driver, memory, cudnn.
    UNIQUE (digest, evidence)
) STRICT""",
    """CREATE TABLE environment ( -- The software of a trial.
    digest TEXT PRIMARY KEY, -- The digest of all other columns.
    jax TEXT NOT NULL, -- Version of jax.
    jaxlib TEXT NOT NULL, -- Version of jaxlib.
    triton TEXT NOT NULL, -- Version of Triton; empty is unknown.
    compiler TEXT NOT NULL, -- Version of ptxas, CUDA or libtpu; empty is unknown.
    driver TEXT NOT NULL, -- Version of the driver; empty is unknown.
    attn_tune TEXT NOT NULL, -- Version of attn-tune; empty is unknown.
    source_hash TEXT NOT NULL -- The digest of the kernel's source; empty is unknown.
) STRICT, WITHOUT ROWID""",
    """CREATE TABLE signature ( -- A problem, with its fields apart.
    text TEXT PRIMARY KEY, -- The canonical text.
    op TEXT NOT NULL, -- The op.
    version INTEGER NOT NULL, -- The version of the op's contract.
    fields TEXT NOT NULL CHECK (json_valid(fields)) -- JSON object of the fields: {"b":1,"t":4096}.
) STRICT, WITHOUT ROWID""",
    """CREATE TABLE run ( -- One sweep, from its begin to its end.
    id INTEGER PRIMARY KEY, -- The run.
    uid TEXT NOT NULL UNIQUE, -- Its name in every database that it is merged into.
    status TEXT NOT NULL CHECK (status IN ('running', 'finished', 'interrupted', 'failed')), -- How it ended.
    device_id INTEGER NOT NULL REFERENCES device (id), -- The device that it was begun on.
    environment TEXT NOT NULL REFERENCES environment (digest), -- The software, without a kernel's source.
    argv TEXT NOT NULL, -- JSON array of the command line.
    host TEXT NOT NULL, -- The name of the host.
    pid INTEGER NOT NULL, -- The number of the process.
    trials INTEGER NOT NULL DEFAULT 0, -- The trials that it recorded, those that gc took among them.
    started TEXT NOT NULL, -- ISO time in UTC.
    heartbeat TEXT NOT NULL, -- ISO time in UTC of its last sign of life.
    ended TEXT, -- ISO time in UTC; NULL while it runs.
    cases INTEGER, -- Problems, each in one direction, that it has something to try in; NULL is unknown.
    cases_done INTEGER, -- Those of them that ended.
    cases_decided INTEGER, -- Those of them that ended with a winner.
    configs INTEGER, -- Configs that it tried or is still to try, without those not needed after all; NULL is unknown.
    configs_done INTEGER, -- Those of them that it tried.
    activity TEXT -- JSON array, one object a device: device, point, direction, kernel, phase, since_us, best_us, ...
) STRICT""",
    f"""CREATE TABLE trial ( -- One attempt at one config. Rows are only added.
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- The trial, in the order of recording; never given twice.
    run_id INTEGER NOT NULL REFERENCES run (id), -- The run that recorded it.
    number INTEGER NOT NULL, -- Its place among the trials of the run, from 1.
    op TEXT NOT NULL, -- The op.
    kernel TEXT NOT NULL, -- The kernel, as op/name.
    direction TEXT NOT NULL, -- The direction: fwd, bwd.
    part TEXT NOT NULL, -- The launch that alone was searched; empty for the whole direction.
    stage TEXT NOT NULL, -- search, or final where configs were measured in turns.
    signature TEXT NOT NULL REFERENCES signature (text), -- The problem.
    point TEXT NOT NULL, -- The grid points that asked for it, joined by +; empty without a name.
    device TEXT NOT NULL, -- The device's name, with its partition.
    device_id INTEGER NOT NULL REFERENCES device (id), -- The row of the device.
    environment TEXT NOT NULL REFERENCES environment (digest), -- The software, with the kernel's source.
    config TEXT NOT NULL CHECK (json_valid(config)), -- JSON object of the knobs.
    config_digest TEXT NOT NULL, -- The digest of the config.
    is_heuristic INTEGER NOT NULL, -- 1 for the config that the kernel chooses without tuning.
    status TEXT NOT NULL, -- The outcome: one of the statuses of docs/database.md.
    reason TEXT NOT NULL, -- The cause of a failure; empty where nothing went wrong.
    median_us REAL, -- Median of the samples in microseconds; NULL unless measured.
    min_us REAL, -- Fastest sample in microseconds.
    dispersion REAL, -- Median distance of the samples from their median, as a share of it.
    error_ratio REAL, -- Largest error over what is allowed; above 1 is wrong, NULL was not compared.
    features INTEGER CHECK (features >= 0), -- Feature problems that it ran and passed; NULL is unknown.
    repeatable INTEGER CHECK (repeatable IN (0, 1)), -- 0 where equal inputs gave different bits; NULL is unknown.
    compile_ms REAL, -- Milliseconds of lowering and compiling.
    prove_ms REAL, -- Milliseconds of comparing outputs with the reference.
    run_ms REAL, -- Milliseconds of timing; in finals the share of a round.
    started TEXT NOT NULL, -- ISO time in UTC; equal for all of one final.
    ended TEXT, -- ISO time in UTC; NULL is unknown.
    round_id TEXT NOT NULL, -- Measurements of one round were taken in turns; /twin marks a second one of a config.
    protocol TEXT, -- JSON object of how it was measured: timer, warmup, flush_l2, calls_per_sample, interleaved.
    conditions TEXT, -- JSON object of the device's clocks, temperature and power meanwhile, of finals.
    errors TEXT NOT NULL, -- JSON array of objects: output, error, allowed.
    shared_bytes INTEGER, -- On-chip memory of one program.
    registers INTEGER, -- Registers of one thread.
    spill_bytes INTEGER, -- Bytes of registers spilled to memory.
    code_digest TEXT NOT NULL, -- The digest of the compiled code; empty is unknown.
    shortage TEXT, -- JSON object of what it ran out of: resource, needed, limit.
    prediction TEXT, -- JSON object of a predicted time: ns, low_ns, high_ns, model, terms.
    samples_ns TEXT, -- JSON array of the samples in nanoseconds, in the order taken; see the view samples.
    UNIQUE (run_id, number),
    CHECK ((status IN ({_MEASURED})) = (samples_ns IS NOT NULL)),
    CHECK ((samples_ns IS NULL) = (median_us IS NULL)),
    CHECK ((samples_ns IS NULL) = (protocol IS NULL)),
    CHECK ((status = '{Status.PREDICTED}') = (prediction IS NOT NULL))
) STRICT""",
    "CREATE INDEX trial_signature ON trial (signature)",
    """CREATE TABLE decision ( -- The best config of each kernel for a problem on a device; derived from trials.
    op TEXT NOT NULL, -- The op.
    kernel TEXT NOT NULL, -- The kernel, as op/name.
    direction TEXT NOT NULL, -- The direction.
    signature TEXT NOT NULL REFERENCES signature (text), -- The problem.
    point TEXT NOT NULL, -- The grid points of its newest trial; empty without a name.
    device TEXT NOT NULL, -- The device's name, with its partition.
    device_id INTEGER NOT NULL REFERENCES device (id), -- A row of the device.
    rank INTEGER NOT NULL, -- 0 is the winner among the kernels.
    config TEXT NOT NULL, -- JSON object of the knobs.
    config_digest TEXT NOT NULL, -- The digest of the config.
    rule TEXT NOT NULL, -- winner: beat untuned or all others; tie: nothing did; only: one was right; search: no final.
    median_us REAL NOT NULL, -- Time in microseconds.
    heuristic_us REAL, -- Time of the kernel's untuned config in microseconds; NULL if it never ran right.
    gain REAL, -- heuristic_us over median_us, of one run.
    regret_bound REAL, -- By what share a rival may be faster, at 95 %.
    worst_error REAL, -- Largest error over what is allowed.
    ties TEXT NOT NULL, -- JSON array of the digests of configs that are as fast.
    samples INTEGER NOT NULL, -- Samples behind median_us.
    trials INTEGER NOT NULL, -- Trials of the kernel on this problem.
    repeatable INTEGER CHECK (repeatable IN (0, 1)), -- 0 where a trial of the config gave different bits.
    features INTEGER CHECK (features >= 0), -- The most feature problems that a trial of the config passed.
    environment TEXT NOT NULL REFERENCES environment (digest), -- The software that was decided for.
    PRIMARY KEY (signature, direction, device_id, rank)
) STRICT, WITHOUT ROWID""",
    """CREATE TABLE imported_pack ( -- A pack that was imported.
    id INTEGER PRIMARY KEY, -- The pack.
    digest TEXT NOT NULL UNIQUE, -- The digest of its contents.
    name TEXT NOT NULL, -- Its name.
    version TEXT NOT NULL, -- Its version.
    manifest TEXT NOT NULL, -- JSON object of its devices, environments and kernels.
    imported TEXT NOT NULL -- ISO time in UTC.
) STRICT""",
    """CREATE TABLE imported_row ( -- A row of an imported pack.
    device_digest TEXT NOT NULL, -- The digest of the device.
    signature TEXT NOT NULL, -- The problem.
    direction TEXT NOT NULL, -- The direction.
    kernel TEXT NOT NULL, -- The kernel's name, without its op.
    pack_id INTEGER NOT NULL REFERENCES imported_pack (id), -- The pack.
    rank INTEGER NOT NULL, -- 0 is the winner among the kernels.
    config TEXT NOT NULL, -- JSON object of the knobs.
    body TEXT NOT NULL, -- JSON object of the whole row.
    PRIMARY KEY (device_digest, signature, direction, kernel)
) STRICT, WITHOUT ROWID""",
)

# A column without a comment is that of the table.
VIEWS = {
    "winners": """-- The winning kernel and config of each problem on each device.
    SELECT op, kernel, direction, signature, point, device, config, rule, median_us,
        heuristic_us AS untuned_us, -- Time of the kernel's untuned config in microseconds; NULL if it never ran right.
        gain AS speedup, -- untuned_us over median_us, both of one final.
        regret_bound, worst_error, repeatable, features, environment
    FROM decision WHERE rank = 0""",
    "failures": f"""-- Trials that were tried and failed; a refused config did not fail.
    SELECT
        id AS trial_id, -- The trial.
        run_id, op, kernel, direction, part, signature, point, device, config, status,
        substr(reason, 1, instr(reason || char(10), char(10)) - 1) AS reason, -- The first line of the cause.
        started
    FROM trial WHERE status IN ({_FAILED})""",
    "samples": """-- One row a sample.
    SELECT
        trial.id AS trial_id, -- The trial.
        kernel, direction, signature, device, config, stage, round_id,
        sample.key AS position, -- The place in the trial, from 0; equal places of one round were taken in one turn.
        sample.value / 1000.0 AS us -- The time in microseconds.
    FROM trial, json_each(trial.samples_ns) AS sample""",
}

# Columns of JSON that SQL looks into, by table, and what names a row.
JSON_COLUMNS = {
    "run": ("id", ("argv", "activity")),
    "trial": ("id", ("samples_ns", "prediction", "shortage", "conditions")),
    "decision": ("signature || ', ' || direction || ', ' || kernel", ("ties",)),
    "imported_pack": ("id", ("manifest",)),
    "imported_row": ("signature || ', ' || direction || ', ' || kernel", ("body",)),
}

TRIGGERS = (
    *(
        f"CREATE TRIGGER {table}_refuses_{verb.lower()} BEFORE {verb} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        for table in FACTS
        for verb in ("UPDATE", "DELETE")
    ),
    """CREATE TRIGGER run_identity_is_fixed
    BEFORE UPDATE OF id, uid, device_id, environment, argv, host, pid, started ON run
    BEGIN SELECT RAISE(ABORT, 'run is append-only'); END""",
    """CREATE TRIGGER run_is_kept BEFORE DELETE ON run
    BEGIN SELECT RAISE(ABORT, 'run is append-only'); END""",
)


def create_schema(connection: sqlite3.Connection) -> None:
    """Creates every table, view and trigger in an empty database."""
    import sqlite_utils  # takes up to a second, and only a new database needs it

    db = sqlite_utils.Database(connection, execute_plugins=False)
    for statement in TABLES:
        db.execute(statement)
    for name, query in VIEWS.items():
        db.create_view(name, query)
    for statement in TRIGGERS:
        db.execute(statement)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def find_gap(connection: sqlite3.Connection) -> str:
    """The first thing that the database lacks of its schema, as a clause; ``""`` where it has all of it.

    More than the schema is no fault: users may add tables and columns.
    """
    for relation, (kind, columns) in _schema().items():
        found_kind, found = _shape(connection, relation)
        if found_kind != kind:
            return f"its {relation} is a {found_kind}, not a {kind}" if found_kind else f"it has no {kind} {relation}"
        for name, declared in columns.items():
            if name not in found:
                return f"its {kind} {relation} has no column {name}"
            if found[name] != declared and relation not in VIEWS:
                return f"its column {relation}.{name} is {found[name]}, not {declared}"
    return ""


def relation_names() -> tuple[str, ...]:
    """The names of all tables and views."""
    return tuple(_schema())


def column_names() -> tuple[str, ...]:
    """The names of the columns of all tables and views, each once."""
    return tuple(dict.fromkeys(name for _, columns in _schema().values() for name in columns))


@functools.cache
def _schema() -> Mapping[str, tuple[str, dict[str, str]]]:
    """The shape of each table and view."""
    connection = sqlite3.connect(":memory:")
    for statement in (*TABLES, *(f"CREATE VIEW {name} AS {query}" for name, query in VIEWS.items())):
        connection.execute(statement)
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')")]
    found = {name: _shape(connection, name) for name in names if not name.startswith("sqlite_")}
    connection.close()
    return found


def _shape(connection: sqlite3.Connection, relation: str) -> tuple[str, dict[str, str]]:
    """Kind of a table or view, ``""`` where there is none, and the declarations of its columns."""
    kind = "SELECT iif(strict, 'STRICT ', '') || type FROM pragma_table_list(?) WHERE schema = 'main'"
    columns = """SELECT name, type || iif("notnull", ' NOT NULL', '') FROM pragma_table_info(?)"""
    row = connection.execute(kind, (relation,)).fetchone()
    if row is None:
        return "", {}
    return row[0], dict(tuple(column) for column in connection.execute(columns, (relation,)))
