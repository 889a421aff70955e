"""``attn-tune lab query`` and ``lab metadata``: formats, parameters, limits, Ctrl-C."""

import csv
import io
import json
import os
import signal
import threading

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app
from attn_tune.db import database
from attn_tune.db.questions import QUESTIONS
from attn_tune.db.store.query import read_query
from tests.cli.fakes import fill


def run(*words):
    return CliRunner().invoke(app, ["lab", *map(str, words)], prog_name="attn-tune")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    path = tmp_path_factory.mktemp("lab") / "lab.db"
    fill(path)
    return path


def test_a_table_shows_values_as_they_are(lab):
    shown = run("query", "SELECT 'x' AS config, 0.001 AS ratio, NULL AS device, 5 AS median_ns", "--db", lab)
    assert shown.exit_code == 0, shown.stderr
    head, _, row = shown.stdout.splitlines()
    assert head.split() == ["config", "ratio", "device", "median_ns"]
    assert row.split() == ["x", "0.001", "-", "5"]


def test_json_and_csv(lab):
    sql = "SELECT id, config, features FROM trial WHERE id <= :last ORDER BY id"
    found = json.loads(run("query", sql, "-p", "last=2", "--db", lab, "--json").stdout)
    assert [row["id"] for row in found["rows"]] == [1, 2]
    assert set(found["rows"][0]["config"]) == {"chunk_k", "chunk_q"}
    assert found["cut"] is False
    rows = list(csv.DictReader(io.StringIO(run("query", sql, "--param", "last=2", "--db", lab, "-f", "csv").stdout)))
    assert [row["id"] for row in rows] == ["1", "2"]
    assert json.loads(rows[0]["config"])
    assert json.loads(run("query", "SELECT 'x' AS config", "--db", lab, "--json").stdout)["rows"] == [{"config": "x"}]


@pytest.mark.parametrize(
    ("word", "kind", "value"),
    [
        ("x=5", "integer", 5),
        ("x=0.5", "real", 0.5),
        ('x="5"', "text", "5"),
        ("x=nvidia-h200", "text", "nvidia-h200"),
        ("x=a=b", "text", "a=b"),
        ("x=[1]", "text", "[1]"),
        ("x=NaN", "text", "NaN"),
        ("x=null", "null", None),
        ("x=", "text", ""),
    ],
)
def test_parameters_are_values(lab, word, kind, value):
    found = json.loads(run("query", "SELECT typeof(:x) AS kind, :x AS value", "-p", word, "--db", lab, "--json").stdout)
    assert found["rows"] == [{"kind": kind, "value": value}]


@pytest.mark.parametrize("words", [["-p", "x"], ["-p", "=1"], ["-p", "x=1", "-p", "x=2"], ["-p", "y=1"]])
def test_a_parameter_that_is_none_is_refused(lab, words):
    assert run("query", "SELECT :x AS x", *words, "--db", lab).exit_code == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [("1e999", "out of range"), ("-1e999", "out of range"), (str(2**63), "64 bits"), ("-" + "9" * 5000, "64 bits")],
)
def test_a_number_that_sqlite_cannot_hold_is_one_error_and_in_quotes_a_text(lab, text, said):
    refused = run("query", "SELECT :x AS x", "-p", f"x={text}", "--db", lab)
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1)
    assert said in refused.stderr
    assert run("query", "SELECT :x AS x", "-p", f'x="{text}"', "--db", lab, "-f", "csv").stdout == f"x\n{text}\n"


def test_rows_are_never_cut_silently(lab):
    sql = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 1001) SELECT x FROM c"
    cut = run("query", sql, "--db", lab, "--json")
    assert len(json.loads(cut.stdout)["rows"]) == 1000
    assert json.loads(cut.stdout)["cut"] is True
    assert "only the first 1000 rows" in cut.stderr
    whole = run("query", sql, "--db", lab, "--limit", "0", "-f", "csv")
    assert len(whole.stdout.splitlines()) == 1002
    assert whole.stderr == ""
    assert run("query", "SELECT 1 AS x", "--limit", "1", "--db", lab).stderr == ""


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_are_asked_by_name(lab, name):
    named = run("query", name, "--db", lab, "--json")
    assert named.exit_code == 0, named.stderr
    assert named.stdout == run("query", QUESTIONS[name].sql, "--db", lab, "--json").stdout


def test_the_list_needs_no_database(tmp_path):
    shown = run("query", "--list", "--db", tmp_path / "none.db")
    assert shown.exit_code == 0
    assert "winners (view): " in shown.stdout
    assert "Which configs lose most?" in shown.stdout
    found = json.loads(run("query", "--list", "--json").stdout)
    assert [one["name"] for one in found["relations"]][:4] == ["winners", "failures", "samples", "trial"]
    assert run("query", "--list", "-f", "csv").exit_code == 2


def test_errors_are_one_line_with_a_code(lab, tmp_path):
    before = lab.read_bytes()
    for sql, code in (("DELETE FROM trial", 2), ("SELECT 1; DELETE FROM trial", 2), ("ATTACH 'x' AS y", 2)):
        result = run("query", sql, "--db", lab, "--json")
        assert (result.exit_code, json.loads(result.stdout)["type"]) == (code, "UsageError")
        assert len(result.stderr.splitlines()) == 1
    assert lab.read_bytes() == before
    assert run("query", "--db", lab).exit_code == 2
    assert run("query", "SELECT 1 AS a", "--db", tmp_path / "none.db").exit_code == 3
    (tmp_path / "prose.db").write_text("prose")
    assert run("query", "SELECT 1 AS a", "--db", tmp_path / "prose.db").exit_code == 5


def test_a_long_query_ends_with_ctrl_c(lab, monkeypatch):
    def interrupted(*words, **more):
        # Only once the command is there: on a busy machine it takes its time.
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        monkeypatch.undo()
        return read_query(*words, **more)

    monkeypatch.setattr(database, "read_query", interrupted)
    # A shell starts what runs in its background with the signal ignored: the query would run to its end.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    sql = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 1e9) SELECT max(x) AS x FROM c"
    try:
        result = run("query", sql, "--db", lab, "--json")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (result.exit_code, json.loads(result.stdout)["error"]) == (130, "interrupted")
    assert run("query", "SELECT 1 AS x", "--db", lab).exit_code == 0


def test_metadata_is_that_of_the_file(tmp_path):
    found = json.loads(run("metadata", "--db", tmp_path / "sweep.db").stdout)
    assert list(found["databases"]) == ["sweep"]
    assert "noise" in found["databases"]["sweep"]["queries"]


def test_a_question_that_is_misspelt_is_named(lab):
    done = run("query", "loosers", "--db", lab)
    assert done.exit_code == 2
    assert "unknown question 'loosers'; did you mean 'losers'" in done.output
