"""Databases that were changed by hand: one error names the file, and the table and the column, or the row."""

import contextlib
import re
import sqlite3

import pytest

from attn_tune.db import Database, collect_garbage, export_pack, import_pack
from attn_tune.schema import IntegrityError, Status
from tests.db.facts import DEVICE, ENVIRONMENT, KERNEL, SIGNATURE, begin, make_trial
from tests.db.test_packs import facts
from tests.db.test_predictions import predicted


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The bytes of a database with a row in each table."""
    folder = tmp_path_factory.mktemp("sound")
    with Database.open(folder / "lab.db", create=True) as database:
        run = begin(database)
        trials = [*facts(), make_trial({"i": 1}, status=Status.CRASHED), predicted(128, 4_000_000)]
        assert database.record_many(run, trials) > 20
        database.end_run(run, "finished")
        database.rebuild_decisions()
        export_pack(database, folder / "own.atpack", name="own", version="1")
        import_pack(database, folder / "own.atpack")
    return (folder / "lab.db").read_bytes()


@pytest.fixture
def damaged(tmp_path, sound):
    """A function that changes a copy of that database by SQL, past its triggers and checks, and returns its path."""

    def damage(*statements: str):
        path = tmp_path / "lab.db"
        path.write_bytes(sound)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as raw:
            raw.execute("PRAGMA ignore_check_constraints = ON")
            for (name,) in raw.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
                raw.execute(f"DROP TRIGGER {name}")
            for statement in statements:
                raw.execute(statement)
        return path

    return damage


def declared_otherwise(old, new):
    """SQL that changes the declaration of tables."""
    return (
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_schema SET sql = replace(sql, '{old}', '{new}') WHERE type = 'table'",
    )


@pytest.mark.parametrize("options", [{}, {"create": True}, {"read_only": True}], ids=["write", "create", "read"])
@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (("DROP TABLE trial",), "it has no STRICT table trial"),
        (("DROP VIEW winners",), "it has no view winners"),
        (("DROP VIEW winners", "CREATE VIEW winners AS SELECT 1 AS op"), "its view winners has no column kernel"),
        (("DROP TABLE run", "CREATE VIEW run AS SELECT 1"), "its run is a view, not a STRICT table"),
        (("ALTER TABLE trial RENAME COLUMN min_us TO fastest",), "its STRICT table trial has no column min_us"),
        (declared_otherwise("host TEXT NOT NULL", "host TEXT"), "its column run.host is TEXT, not TEXT NOT NULL"),
        (declared_otherwise("STRICT, WITHOUT", "WITHOUT"), "its environment is a table, not a STRICT table"),
    ],
)  # fmt: skip
def test_a_database_without_its_schema_is_refused_at_once(damaged, options, statements, said):
    path = damaged(*statements)
    with pytest.raises(IntegrityError) as caught:
        Database.open(path, **options)
    assert f"{path} is damaged: {said}; restore it from a copy, or sweep into another" in str(caught.value)


def test_tables_columns_and_broken_views_of_a_user_are_no_damage(damaged):
    path = damaged(
        "CREATE TABLE notes (text)", "ALTER TABLE trial ADD COLUMN note TEXT", "CREATE VIEW odd AS SELECT 1 FROM none"
    )  # fmt: skip
    with Database.open(path) as database:
        assert sum(1 for _ in database.trials())
        assert database.integrity_check() == ()


def measured(database):
    return database.measured(KERNEL, "fwd", SIGNATURE, DEVICE, ENVIRONMENT)


READS = {
    "trials": lambda database: list(database.trials()),
    "decide": lambda database: list(database.decide()),
    "decisions": Database.decisions,
    "past searches": Database.past_searches,
    "status": Database.status,
    "pace": lambda database: database.pace(DEVICE),
}
TRIAL = "row 3 of trial cannot be read: "
DECISION = rf"row \({re.escape(SIGNATURE.text)}, bwd, device 1, rank 0\) of decision cannot be read: "
DECIDED = f"WHERE signature = '{SIGNATURE.text}' AND direction = 'bwd' AND device_id = 1 AND rank = 0"


@pytest.mark.parametrize(
    ("read", "statement", "said"),
    [
        ("trials", "UPDATE trial SET config = '{' WHERE id = 3", TRIAL + "Expecting"),
        ("trials", "UPDATE trial SET config = '[]' WHERE id = 3", TRIAL + r"'\[\]' is no JSON object"),
        ("trials", "UPDATE trial SET stage = 'x' WHERE id = 3", TRIAL + "'x' is not a valid Stage"),
        ("trials", "UPDATE trial SET samples_ns = NULL WHERE id = 3", TRIAL + "a trial has a measurement if"),
        ("trials", "UPDATE trial SET errors = '[1]' WHERE id = 3", TRIAL),
        ("trials", "UPDATE trial SET started = 'noon' WHERE id = 3", TRIAL + "'noon' is no time"),
        ("trials", "UPDATE trial SET kernel = 'x' WHERE id = 3", TRIAL + "kernel 'x' is none of"),
        ("trials", "UPDATE trial SET device_id = 99 WHERE id = 3", TRIAL + "row 99 of device .* is not there"),
        ("decide", "UPDATE trial SET samples_ns = '[1e400]' WHERE id = 3", TRIAL + "1e400 is no number"),
        ("decisions", f"UPDATE decision SET rule = 'luck' {DECIDED}", DECISION + "'luck' is not a valid Rule"),
        ("decisions", f"UPDATE decision SET ties = '7' {DECIDED}", DECISION + "'7' is no JSON array"),
        ("decisions", f"UPDATE decision SET median_us = 9e999 {DECIDED}", DECISION + "cannot convert"),
        ("decisions", f"UPDATE decision SET median_us = -1 {DECIDED}", DECISION + "its median_us is -1.0"),
        ("decisions", f"UPDATE decision SET samples = -1 {DECIDED}", DECISION + "its samples is -1"),
        ("decisions", f"UPDATE decision SET config_digest = '' {DECIDED}", DECISION + "its config_digest is not"),
        ("decisions", f"UPDATE decision SET kernel = 'x' {DECIDED}", DECISION + "kernel 'x' is none of"),
        ("decisions", "UPDATE device SET evidence = '[1]' WHERE id = 1", "row 1 of device cannot be read"),
        ("decisions", "UPDATE signature SET fields = '{}'", "row '.*' of signature cannot be read: its fields"),
        ("past searches", "UPDATE trial SET stage = 'search', config = '7' WHERE id = 3", TRIAL + "'7' is no JSON"),
        ("status", "UPDATE run SET argv = '[1]'", "row 1 of run cannot be read: .* no JSON array of texts"),
        ("status", "UPDATE run SET heartbeat = 'noon'", "row 1 of run cannot be read: 'noon' is no time"),
        ("status", "UPDATE trial SET status = 'x' WHERE id = 3", TRIAL + "'x' is not a valid Status"),
        ("pace", "UPDATE run SET ended = 'noon'", "row 1 of run cannot be read: its times"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(damaged, read, statement, said):
    refused(damaged(statement), READS[read], said)


@pytest.mark.parametrize(
    ("name", "statement", "said"),
    [
        ("trials", "UPDATE trial SET config = '[]' WHERE id = 3", TRIAL + r"its config is '\[\]'"),
        ("trials", "UPDATE trial SET started = 'noon' WHERE id = 3", TRIAL + "its started is 'noon'"),
        ("trials", "UPDATE trial SET samples_ns = '{' WHERE id = 3", TRIAL + "its samples_ns is '{'"),
        ("trials", "UPDATE trial SET prediction = '{}' WHERE prediction NOT NULL", "of trial .* its predicted_ns is"),
        ("trials", """UPDATE trial SET prediction = '{"ns":"x"}'""", "row 1 of trial .* its predicted_ns is 'x'"),
        ("failures", "UPDATE trial SET started = 'noon'", "of trial cannot be read: its started is 'noon'"),
        ("runs", "UPDATE run SET ended = 'noon'", "row 1 of run cannot be read: its ended is 'noon'"),
        ("runs", "UPDATE run SET argv = '{'", "row 1 of run cannot be read: its argv is '{'"),
        ("coverage", "UPDATE trial SET started = 'noon'", "the frame 'coverage' .* its newest is 'noon'"),
        ("decisions", "UPDATE decision SET config = '7'", "the frame 'decisions' .* its config is '7'"),
        ("imported", "UPDATE imported_row SET config = '{'", "the frame 'imported' .* its config is '{'"),
        ("imported", "UPDATE imported_row SET body = '{}'", "the frame 'imported' .* its kernel is None"),
        ("imported", "UPDATE imported_row SET body = '{'", "row .* of imported_row .* its body is '{'"),
    ],
)
def test_a_row_that_is_not_for_a_frame_is_named(damaged, name, statement, said):
    refused(damaged(statement), lambda database: database.frame(name), said)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE imported_row SET body = '{}'", "of imported_row cannot be read"),
        (
            """UPDATE imported_row SET body = replace(body, '"state"', '"s"')""",
            "of imported_row cannot be read: it lacks 'state'",
        ),
        ("UPDATE imported_pack SET manifest = '{}'", "row 1 of imported_pack cannot be read"),
    ],
)
def test_an_import_names_what_cannot_be_read_of_earlier_ones(damaged, tmp_path, sound, statement, said):
    (tmp_path / "sound.db").write_bytes(sound)
    with Database.open(tmp_path / "sound.db") as database:
        export_pack(database, tmp_path / "again.atpack", name="again", version="1")
    refused(damaged(statement), lambda database: import_pack(database, tmp_path / "again.atpack"), said)


def test_measured_configs_of_an_unknown_status_are_refused(damaged):
    path = damaged("UPDATE trial SET status = 'x' WHERE reason <> ''")
    refused(path, measured, "of trial cannot be read: 'x' is not a valid Status")


def test_garbage_collection_names_a_row_too(damaged):
    refused(damaged("UPDATE trial SET config = '[]' WHERE id = 3"), collect_garbage, "trial 3 was changed")


def refused(path, read, said):
    with Database.open(path) as database, pytest.raises(IntegrityError) as caught:
        read(database)
    assert caught.value.exit_code == 5
    assert re.search(f"{re.escape(str(path))} is damaged: .*{said}.*; .*restore it from a copy", str(caught.value))
