"""Garbage collection: what goes, what never does, and what a dry run says beforehand."""

import sqlite3

import pytest

from attn_tune.db import (
    Database,
    collect_garbage,
    export_pack,
    import_pack,
    merge_database,
)
from attn_tune.schema import IntegrityError, Status, StorageError, UsageError
from tests.db.facts import ENVIRONMENT, NEWER, begin, make_signature, make_trial


@pytest.fixture
def path(tmp_path):
    """Two environments on two problems: one was swept again, the other was not."""
    path = tmp_path / "lab.db"
    with Database.open(path, create=True) as database:
        for environment, started in ((ENVIRONMENT, 10), (NEWER, 5000)):
            run = begin(database, environment=environment)
            trials = [
                make_trial({"i": i}, [1000 + i] * 9, environment=environment, started_us=started + i) for i in range(20)
            ]
            trials[5] = make_trial(
                {"i": 5},
                status=Status.CRASHED,
                reason=f"in {environment.jax}",
                environment=environment,
                started_us=started,
            )
            database.record_many(run, trials)
            if environment is ENVIRONMENT:
                other = make_trial({"i": 99}, signature=make_signature(q_len=64), started_us=1)
                database.record(run, other)
            database.end_run(run, "finished")
        database.end_run(begin(database), "failed")
        database.end_run(begin(database), "failed")
        database.rebuild_decisions()
    return path


def kinds(summary):
    return {item.table: item.rows for item in summary.items}


def words(database):
    return [repr(trial) for trial in database.trials()]


def test_a_dry_run_lists_exactly_what_a_collection_deletes(path):
    with Database.open(path) as database:
        before = path.read_bytes()
        dry = collect_garbage(database, dry_run=True, superseded=True)
        assert path.read_bytes() == before
        done = collect_garbage(database, superseded=True)
        assert done.items == dry.items
        assert kinds(done) == {"trial": 20, "run": 1}
        assert all(item.why for item in done.items)
        assert collect_garbage(database, superseded=True).items == ()


def test_a_collection_keeps_decisions_and_newer_trials(path):
    with Database.open(path) as database:
        trials, decided = words(database), list(database.decide())
        stored = database.decisions()
        collect_garbage(database, superseded=True)
        assert words(database) == trials[20:]
        assert [(d.config, d.median_ns) for d in database.decide()] == [(d.config, d.median_ns) for d in decided]
        assert database.decisions() == stored
        assert database.integrity_check() == ()


def test_no_trial_is_deleted_unless_asked(path):
    with Database.open(path) as database:
        trials = words(database)
        assert kinds(collect_garbage(database)) == {"run": 1}
        assert words(database) == trials


def test_facts_are_append_only_after_a_collection(path):
    with Database.open(path) as database:
        collect_garbage(database, superseded=True)
        with (
            sqlite3.connect(path) as raw,
            pytest.raises(sqlite3.IntegrityError, match="append-only"),
        ):
            raw.execute("DELETE FROM trial")
        run = begin(database)
        database.record(run, make_trial({"i": 1}))
        assert database.integrity_check() == ()


def test_a_trial_that_another_table_refers_to_stays(path):
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE proof (trial_id INTEGER REFERENCES trial (id))")
        raw.execute("INSERT INTO proof VALUES (3)")
    with Database.open(path) as database:
        assert kinds(collect_garbage(database, superseded=True))["trial"] == 19
        assert database.integrity_check() == ()


def test_an_imported_pack_without_answers_is_deleted(path, tmp_path):
    with Database.open(path) as database:
        export_pack(database, tmp_path / "a.atpack", name="a", version="1", ungated="a test")
        run = begin(database, environment=NEWER)
        for problem in ({}, {"signature": make_signature(q_len=64)}):
            better = make_trial({"i": 77}, [10] * 9, environment=NEWER, started_us=9000, **problem)
            database.record(run, better)
        database.end_run(run, "finished")
        export_pack(database, tmp_path / "b.atpack", name="b", version="1", ungated="a test")
        for name in "ab":
            import_pack(database, tmp_path / f"{name}.atpack", policy="replace")
        assert kinds(collect_garbage(database))["imported_pack"] == 1
        assert set(database.frame("imported")["pack"]) == {"b"}


def test_collected_trials_are_not_merged_again(path, tmp_path):
    with Database.open(tmp_path / "all.db", create=True) as database:
        assert merge_database(database, path).trials == 41
        collect_garbage(database, superseded=True)
        left = words(database)
        assert merge_database(database, path).trials == 0
        assert words(database) == left
    with Database.open(path) as source:
        collect_garbage(source, superseded=True)
        source.record(begin(source), make_trial({"i": 5000}))
    with Database.open(tmp_path / "all.db") as database:
        assert merge_database(database, path).trials == 1
        assert words(database)[:-1] == left
        assert database.integrity_check() == ()


def test_a_collection_is_refused_during_a_sweep(path):
    with Database.open(path) as database:
        begin(database)
        with pytest.raises(UsageError, match="a run is open"):
            collect_garbage(database)
        with Database.open(path) as other, pytest.raises(StorageError, match="written by process"):
            collect_garbage(other)


def test_a_reader_cannot_collect(path):
    with Database.open(path, read_only=True) as database, pytest.raises(StorageError):
        collect_garbage(database)


def test_a_collection_that_would_change_a_decision_deletes_nothing(path, monkeypatch):
    with Database.open(path) as database:
        before = words(database)
        answers = iter([["one"], ["another"]])
        monkeypatch.setattr("attn_tune.db.store.garbage._answers", lambda *_: next(answers))
        with pytest.raises(IntegrityError, match="would change"):
            collect_garbage(database, superseded=True)
        assert words(database) == before
        assert database.integrity_check() == ()
