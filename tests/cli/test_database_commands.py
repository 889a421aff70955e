"""The commands merge, gc and best, and what doctor says of a database."""

import json
import sqlite3

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app
from attn_tune.commands.shared.exit_codes import MEANINGS
from attn_tune.db import Database
from attn_tune.runtime import misses
from attn_tune.runtime.active import settings
from tests.db.facts import ENVIRONMENT, NEWER, SIGNATURE, begin, make_trial
from tests.db.test_predictions import open_with, predicted


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def host(tmp_path):
    """A database with a newer environment beside an older one."""
    path = tmp_path / "host.db"
    with Database.open(path, create=True) as database:
        for started, environment in ((1, ENVIRONMENT), (100, NEWER)):
            run_id = begin(database, environment=environment)
            trials = [make_trial({"i": i}, environment=environment, started_us=started + i) for i in range(5)]
            database.record_many(run_id, trials)
            database.end_run(run_id, "finished")
    return path


def test_merge_twice(tmp_path, host):
    lab = tmp_path / "new" / "lab.db"
    first = run("lab", "merge", host, "--db", lab)
    assert first.exit_code == 0, first.stderr
    assert "2 new runs, 10 new trials" in first.stdout
    assert "1 problem decided" in first.stdout
    again = json.loads(run("lab", "merge", host, "--db", lab, "--json").stdout)
    assert again["merged"] == [{"path": str(host), "runs": 0, "trials": 0}]


def test_a_merge_that_fails_makes_no_database(tmp_path, host):
    lab = tmp_path / "new" / "lab.db"
    (tmp_path / "text.db").write_text("no database")
    assert run("lab", "merge", tmp_path / "nope.db", "--db", lab).exit_code == 3
    assert run("lab", "merge", host, tmp_path / "text.db", "--db", lab).exit_code == 5
    assert not lab.parent.exists()


def test_gc_lists_what_it_will_remove_before_removing(host):
    dry = run("lab", "gc", "--db", host, "--dry-run", "--superseded")
    assert dry.exit_code == 0, dry.stderr
    assert "5 rows of trial would be deleted: a newer environment decides" in dry.stdout
    done = json.loads(run("lab", "gc", "--db", host, "--superseded", "--json").stdout)
    assert {item["table"]: item["rows"] for item in done["items"]}["trial"] == 5
    assert "nothing to collect" in run("lab", "gc", "--db", host, "--superseded").stdout


def test_gc_makes_no_database(tmp_path):
    result = run("lab", "gc", "--db", tmp_path / "lab.db")
    assert result.exit_code in MEANINGS
    assert result.exit_code != 0
    assert not list(tmp_path.iterdir())


def checks(db):
    result = run("doctor", "--db", db, "--json")
    return {check["name"]: check for check in json.loads(result.stdout)["checks"]}


def test_doctor_describes_a_database(host, monkeypatch):
    found = checks(host)
    assert "10 trials" in found["database"]["detail"]
    assert "schema" in found["database"]["detail"]
    assert found["filesystem"]["verdict"] == "ok"
    monkeypatch.setattr("attn_tune.db.store.filesystem.is_network", lambda _: True)
    assert found.keys() == checks(host).keys()
    assert checks(host)["filesystem"]["verdict"] == "warn"
    assert "attn-tune lab merge" in checks(host)["filesystem"]["detail"]


def test_doctor_finds_damage(host):
    with sqlite3.connect(host) as raw:
        raw.execute("DROP TRIGGER trial_refuses_update")
        raw.execute("""UPDATE trial SET config = '{"i":9}' WHERE id = 2""")
    found = checks(host)["database"]
    assert found["verdict"] == "fail"
    assert "trial 2 was changed" in found["detail"]


def test_doctor_reads_what_lookups_read_of_the_environment(host, monkeypatch):
    for name, value, verdict in (
        ("ATTN_TUNE_DETERMINISTIC", "maybe", "fail"),
        ("ATTN_TUNE_ON_MISS", "stict", "fail"),
        ("ATTN_TUNE_OVERRIDES", "/nowhere/x.json", "fail"),
        ("ATTN_TUNE_ON_MIS", "warn", "warn"),
        ("ATTN_TUNE_DETERMINISTIC", "1", "ok"),
    ):
        with monkeypatch.context() as only:
            only.setattr(settings, "_current", None)
            only.setattr(misses, "_mode", None)
            only.setenv(name, value)
            found = checks(host)["settings"]
        assert (found["verdict"], name in found["detail"]) == (verdict, verdict != "ok"), found


def test_best_says_that_filters_hide_what_was_decided(host):
    lab = host.parent / "lab.db"
    run("lab", "merge", host, "--db", lab)
    assert run("best", SIGNATURE.text, "--db", lab).exit_code == 0
    told = run("best", SIGNATURE.text, "--db", lab, "--device", "tpu-v6e").stderr
    assert "none that --kernel, --direction and --device leave" in told


def test_best_of_what_was_only_compiled_names_the_part_of_the_report(tmp_path):
    db = tmp_path / "lab.db"
    with open_with(db, predicted(128, 4_000_000)) as database:
        signature = next(database.trials()).signature.text
    result = run("best", signature, "--db", db)
    assert result.exit_code == 3
    assert f"attn-tune report --section predicted --db {db}" in result.stderr
    assert run("report", "--section", "predicted", "--db", db).exit_code == 0
    assert "tune it with: attn-tune sweep" in run("best", signature, "--db", db, "-k", "xla").stderr
