"""Databases of several hosts become one, once."""

import contextlib
import sqlite3

import pytest

from attn_tune.db import Database, merge_database
from attn_tune.schema import IntegrityError, NoDataError, Status
from tests.db.facts import ENVIRONMENT, NEWER, OTHER_DEVICE, begin, make_signature, make_trial


def fill(path, trials, **run_options):
    with Database.open(path, create=True) as database:
        run = begin(database, **run_options)
        for trial in trials:
            database.record(run, trial)
        database.end_run(run, "finished")


@pytest.fixture
def target(tmp_path):
    fill(tmp_path / "target.db", [make_trial({"mine": 1})])
    with Database.open(tmp_path / "target.db") as database:
        yield database


def texts(trials):
    return [repr(t) for t in trials]


def test_all_facts_arrive_and_only_once(tmp_path, target):
    theirs = [
        make_trial({"theirs": i}, signature=make_signature(q_len=i + 1), device=OTHER_DEVICE) for i in range(5)
    ] + [
        make_trial(status=Status.CRASHED, environment=NEWER),
        make_trial(repeatable=False, features=3),
        make_trial(repeatable=True, features=3, status=Status.UNPROVEN),
    ]
    fill(tmp_path / "other.db", theirs, device=OTHER_DEVICE, environment=NEWER)
    mine = texts(target.trials())
    summary = merge_database(target, tmp_path / "other.db")
    assert (summary.runs, summary.trials) == (1, 8)
    assert texts(target.trials()) == mine + texts(theirs)
    assert target.frame("runs")["status"].tolist() == ["finished", "finished"]
    again = merge_database(target, tmp_path / "other.db")
    assert (again.runs, again.trials) == (0, 0)
    assert texts(target.trials()) == mine + texts(theirs)
    assert target.integrity_check() == ()
    assert target.rebuild_decisions() == 6


def test_a_running_run_is_merged_step_by_step(tmp_path, target):
    with Database.open(tmp_path / "other.db", create=True) as other:
        run = begin(other, environment=ENVIRONMENT)
        other.record(run, make_trial({"i": 0}))
        assert merge_database(target, other.path).trials == 1
        assert target.frame("runs")["status"].tolist() == ["finished", "interrupted"]
        other.record(run, make_trial({"i": 1}))
        other.end_run(run, "finished")
    summary = merge_database(target, tmp_path / "other.db")
    assert (summary.runs, summary.trials) == (0, 1)
    assert target.frame("runs")["status"].tolist() == ["finished", "finished"]
    assert [t.config for t in target.trials()] == [{"mine": 1}, {"i": 0}, {"i": 1}]


def test_merging_into_a_running_sweep_leaves_it_running(tmp_path, target):
    fill(tmp_path / "other.db", [make_trial({"i": 0})])
    run = begin(target)
    target.record(run, make_trial({"i": 1}))
    assert merge_database(target, tmp_path / "other.db").trials == 1
    assert merge_database(target, target.path).trials == 0
    target.record(run, make_trial({"i": 2}))
    assert target.status().running


def test_references_are_checked_again_after_a_merge(tmp_path, target):
    fill(tmp_path / "other.db", [make_trial({"i": 0})])
    merge_database(target, tmp_path / "other.db")
    with pytest.raises(NoDataError):
        merge_database(target, tmp_path / "absent.db")
    assert target.integrity_check() == ()
    with (
        pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"),
        target.transaction() as connection,
    ):
        connection.execute("INSERT INTO imported_row VALUES ('d', 's', 'fwd', 'k', 999, 0, '{}', '{}')")


DAMAGE = {
    "stage": ("UPDATE trial SET stage = 'x' WHERE id = 7", "trial 7 was changed"),
    "config": ("""UPDATE trial SET config = '{"i":77}' WHERE id = 4""", "trial 4 was changed"),
    "device": ("UPDATE device SET units = 1", "row 1 of device was changed"),
    "reference": (
        "UPDATE trial SET device_id = 999 WHERE id = 40",
        "row 40 of trial points to nothing in device",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_source_adds_nothing(tmp_path, target, damage, message):
    fill(tmp_path / "other.db", [make_trial({"i": i}) for i in range(50)])
    # Sound pages, but a fact that cannot be: found in the middle of the copy.
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as raw:
        for table in ("trial", "device"):
            raw.execute(f"DROP TRIGGER {table}_refuses_update")
        raw.execute(damage)
        raw.commit()
    before = texts(target.trials())
    with pytest.raises(IntegrityError, match=message):
        merge_database(target, tmp_path / "other.db")
    assert texts(target.trials()) == before
    with pytest.raises(NoDataError):
        merge_database(target, tmp_path / "absent.db")
