"""Decisions made by several processes."""

import pytest

from attn_tune.db import Database, decision_table, side_by_side
from tests.db.facts import begin, make_signature, make_trial


@pytest.fixture
def database(tmp_path, monkeypatch):
    monkeypatch.setattr(side_by_side, "LEAST_PROBLEMS", 2)
    with Database.open(tmp_path / "lab.db", create=True) as database:
        run = begin(database)
        for batch in range(1, 41):
            signature = make_signature(batch=batch)
            for number, block in enumerate((32, 64)):
                samples = tuple(1000 + 10 * batch + 100 * number + i for i in range(3))
                trial = make_trial({"block_q": block}, samples, signature=signature)
                database.record(run, trial)
        yield database


def test_several_processes_decide_as_one_does(database):
    assert database.rebuild_decisions() == 40
    alone = database.decisions()
    assert database.rebuild_decisions(processes=2) == 40
    assert database.decisions() == alone
    assert len(alone) == 40


def test_what_is_not_committed_is_decided_here(database, monkeypatch):
    monkeypatch.setattr(side_by_side, "_decide_all", lambda *args: pytest.fail("other processes"))
    with database.transaction():
        assert database._decide_all([], 2) == []
    monkeypatch.setattr(side_by_side, "LEAST_PROBLEMS", 41)
    assert database.rebuild_decisions(processes=2) == 40


def test_without_other_processes_one_decides(database, tmp_path, caplog):
    problems = decision_table.open_problems(database._connection, None)
    # They find no database, and end.
    assert side_by_side.decide_side_by_side(tmp_path / "none.db", problems, 2) is None
    assert "deciding in one process instead of 2" in caplog.text
