"""``Database.query``: reads, and nothing else; what cannot be run is one clear error."""

import sqlite3

import pandas as pd
import pytest

from attn_tune.db import Database
from attn_tune.db.datasette import datasette_metadata
from attn_tune.db.described import relations
from attn_tune.db.questions import QUESTIONS
from attn_tune.schema import IntegrityError, Status, UsageError
from tests.db.facts import begin, make_trial


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("db") / "lab.db"
    with Database.open(path, create=True) as database:
        run = begin(database)
        for place in range(4):
            database.record(run, make_trial({"block_q": 2**place}, features=3))
        database.record(run, make_trial({"block_q": 5}, status=Status.CRASHED))
        database.rebuild_decisions()
    return path


@pytest.fixture(params=["to read", "to write"])
def database(path, request):
    with Database.open(path, read_only=request.param == "to read") as database:
        yield database


def test_a_query_gives_a_frame_with_types(database):
    found = database.query("SELECT id, features, median_us, status FROM trial ORDER BY id")
    types = {name: str(found[name].dtype) for name in ("id", "features", "median_us")}
    assert types == {"id": "Int64", "features": "Int64", "median_us": "Float64"}
    assert found["id"].tolist() == [1, 2, 3, 4, 5]
    assert found["features"].isna().tolist() == [False] * 4 + [True]
    assert pd.api.types.is_string_dtype(found["status"])


def test_parameters_and_limits(database):
    assert database.query("SELECT id FROM trial WHERE id > :least", {"least": 3})["id"].tolist() == [4, 5]
    assert database.query("SELECT id FROM trial ORDER BY id", limit=2)["id"].tolist() == [1, 2]
    assert list(database.query("SELECT id, op FROM trial WHERE 0").columns) == ["id", "op"]
    evil = "1; DROP TABLE trial; --"
    assert database.query("SELECT :text AS text", {"text": evil})["text"].tolist() == [evil]


WRITES = [
    "INSERT INTO trial DEFAULT VALUES",
    "DELETE FROM decision",
    "UPDATE run SET status = 'failed'",
    "WITH x AS (SELECT 1) DELETE FROM decision",
    "WITH x AS (SELECT 1) INSERT INTO signature SELECT 'a', 'b', 1, '{}' FROM x",
    "CREATE TEMP TABLE x (a)",
    "DROP TABLE decision",
    "ALTER TABLE run ADD COLUMN x",
    "PRAGMA user_version = 7",
    "PRAGMA journal_mode = delete",
    "SELECT * FROM pragma_table_info('trial')",
    "SELECT * FROM pragma_journal_mode('delete')",
    "ATTACH 'other.db' AS other",
    "DETACH main",
    "VACUUM",
    "VACUUM INTO 'copy.db'",
    "BEGIN IMMEDIATE",
    "REINDEX",
    "ANALYZE",
    "EXPLAIN DELETE FROM decision",
    "/* SELECT */ DELETE FROM decision",
    "-- SELECT\nDELETE FROM decision",
]


@pytest.mark.parametrize("sql", WRITES)
def test_what_is_no_reading_is_refused(database, sql, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="only read"):
        database.query(sql)
    assert not list(tmp_path.iterdir())
    assert database.describe().counts["decision"] == 1


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT 1; SELECT 2", "one statement"),
        ("SELECT 1; DELETE FROM decision", "one statement"),
        ("SELECT * FROM trails", "did you mean 'trial'"),
        ("SELECT * FROM nothing_like_it", "--list"),
        ("SELECT trials FROM failures", "no such column: trials; did you mean 'trial"),
        ("SELECT zzzzz FROM trial", "no such column: zzzzz; 'attn-tune lab query --list'"),
        ("SELECT t.kernl FROM trial AS t", "no such column: t.kernl; did you mean 'kernel'"),
        ("SELECT", "incomplete input|syntax error"),
        ("SELECT :x AS x", "-p x=VALUE"),
        ("SELECT ? AS x", "no name"),
        ("SELECT 1 AS a, 2 AS a", "two columns are called 'a'"),
        ("SELECT load_extension('x')", "extensions are refused"),
        ("", "this is refused"),
        ("-- nothing", "this is refused"),
        ("; SELECT 1", "this is refused"),
        ("\ud800", "refused"),
        ("SELECT '\ud800'", "Unicode"),
        ("SELECT 1 \0", "null character"),
    ],
)
def test_what_cannot_be_run_is_an_error_of_usage(database, sql, says):
    with pytest.raises(UsageError, match=says):
        database.query(sql)


def test_an_unknown_parameter_or_a_number_too_large_is_an_error(database):
    with pytest.raises(UsageError, match="no parameter :x"):
        database.query("SELECT 1", {"x": 1})
    with pytest.raises(UsageError, match="beyond 64 bits"):
        database.query("SELECT :x AS x", {"x": 2**70})


@pytest.mark.parametrize(
    "sql",
    [
        "select 1 as a",
        "  \n/* why */ -- because\n SELECT 1 AS a;",
        "WITH x(a) AS (VALUES (1)) SELECT a FROM x",
        "WITH RECURSIVE x(a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM x WHERE a < 3) SELECT min(a) AS a FROM x",
        "SELECT count(*) AS a FROM samples WHERE trial_id = 1 AND position = 0",
        "SELECT config ->> 'block_q' AS a FROM trial WHERE id = 1",
    ],
)
def test_ways_to_read_are_allowed(database, sql):
    assert database.query(sql)["a"].tolist() == [1]


def test_a_database_that_was_asked_can_be_written_again(path):
    with Database.open(path) as database:
        with pytest.raises(UsageError):
            database.query("SELECT nope FROM trial")
        database.query("SELECT 1 AS a")
        assert database.rebuild_decisions() == 1


def test_a_damaged_file_is_no_error_of_usage(path, tmp_path):
    copy = tmp_path / "copy.db"
    with sqlite3.connect(path) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    target.execute("PRAGMA journal_mode = delete")
    target.close()
    data = bytearray(copy.read_bytes())
    for page in range(len(data) // 4096):
        if data[page * 4096 : page * 4096 + 1] == b"\x0d":  # a leaf of a table
            data[page * 4096 + 1 : page * 4096 + 200] = b"\xff" * 199
    copy.write_bytes(data)
    with pytest.raises(IntegrityError), Database.open(copy, read_only=True) as database:
        database.query("SELECT * FROM trial")


def test_every_column_is_described(database):
    for one in relations():
        assert list(database.query(f"SELECT * FROM {one.name}").columns) == list(one.columns)
        assert all(says.endswith(".") for says in (one.about, *one.columns.values()))


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_is_a_query(database, name):
    assert len(database.query(QUESTIONS[name].sql).columns) > 2


def test_metadata_names_what_there_is(database):
    (found,) = datasette_metadata("lab")["databases"].values()
    for name, table in found["tables"].items():
        columns = set(database.query(f"SELECT * FROM {name}").columns)
        assert set(table["columns"]) == columns
        assert set(table.get("facets", ())) <= columns
    assert {query["sql"] for query in found["queries"].values()} == {one.sql for one in QUESTIONS.values()}
