"""The table of trials in SQL: readable as it is, closed to changes, and with views."""

import sqlite3

import pytest

from attn_tune.db import Database
from attn_tune.schema import Status
from tests.db.facts import ENVIRONMENT, KERNEL, SIGNATURE, begin, make_trial


@pytest.fixture
def database(tmp_path):
    with Database.open(tmp_path / "lab.db", create=True) as database:
        yield database


@pytest.mark.parametrize("table", ["trial", "device", "environment", "signature", "run"])
def test_facts_are_append_only(database, table):
    database.record(begin(database), make_trial())
    column = {"trial": "status", "device": "family", "environment": "jax"}.get(table, "rowid")
    column = {"signature": "op", "run": "uid"}.get(table, column)
    for statement in (f"UPDATE {table} SET {column} = 'x'", f"DELETE FROM {table}"):
        with (
            sqlite3.connect(database.path) as raw,
            pytest.raises(sqlite3.IntegrityError, match=f"{table} is append-only"),
        ):
            raw.execute(statement)


@pytest.mark.parametrize(
    "change",
    [
        {"status": "incorrect"},
        {"status": "predicted", "samples_ns": None, "median_us": None, "protocol": None},
        {"samples_ns": None},
        {"median_us": None},
        {"protocol": None},
        {"config": "{"},
        {"features": -1},
    ],
)
def test_sql_refuses_a_trial_that_cannot_be(database, change):
    database.record(begin(database), make_trial())
    with sqlite3.connect(database.path) as raw:
        raw.row_factory = sqlite3.Row
        row = dict(raw.execute("SELECT * FROM trial").fetchone()) | {"id": 2, "number": 2}
        sql = f"INSERT INTO trial VALUES ({', '.join(f':{name}' for name in row)})"
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            raw.execute(sql, row | change)
        raw.execute(sql, row)


def test_a_trial_reads_in_plain_sql(database):
    trial = make_trial(
        {"block_q": 64},
        (1000, 1500, 2500),
        point="llama3-8b/4x4k",
        started_us=1_700_000_000_000_000,
        ended_us=1_700_000_001_500_000,
        prove_ms=3.5,
    )
    database.record(begin(database), trial)
    with sqlite3.connect(database.path) as raw:
        raw.row_factory = sqlite3.Row
        (row,) = map(dict, raw.execute("SELECT * FROM trial"))
        samples = raw.execute("SELECT position, us FROM samples ORDER BY 1").fetchall()
    wanted = {
        "op": "flash_attention",
        "kernel": KERNEL,
        "direction": "fwd",
        "signature": SIGNATURE.text,
        "point": "llama3-8b/4x4k",
        "device": "nvidia-h200",
        "environment": ENVIRONMENT.digest,
        "config": '{"block_q":64}',
        "status": "ok",
        "median_us": 1.5,
        "min_us": 1.0,
        "dispersion": 0.333333,
        "error_ratio": pytest.approx(0.2),
        "compile_ms": 12.5,
        "prove_ms": 3.5,
        "started": "2023-11-14T22:13:20.000000Z",
        "ended": "2023-11-14T22:13:21.500000Z",
        "samples_ns": "[1000,1500,2500]",
    }
    assert {name: row[name] for name in wanted} == wanted
    assert [tuple(sample) for sample in samples] == [(0, 1.0), (1, 1.5), (2, 2.5)]


def test_the_view_failures_has_the_trials_whose_status_is_a_failure(database):
    run = begin(database)
    for status in set(Status) - {Status.PREDICTED}:
        reason = "" if status.is_fine else f"{status}\nand a log"
        database.record(run, make_trial(status=status, reason=reason))
    with sqlite3.connect(database.path) as raw:
        found = dict(raw.execute("SELECT status, reason FROM failures"))
    assert found == {str(s): str(s) for s in Status if s.is_failure}
