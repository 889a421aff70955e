"""``Database.decision``: one decision of the table."""

import dataclasses
import sqlite3

import pytest

from attn_tune.db import Database
from attn_tune.schema import Decision
from tests.db.facts import DEVICE, SIGNATURE, begin, make_trial


@pytest.fixture
def database(tmp_path):
    with Database.open(tmp_path / "lab.db", create=True) as database:
        yield database


def test_a_decision_looked_up_is_whole_and_frozen(database):
    database.record(begin(database), make_trial())
    database.rebuild_decisions()
    found = database.decision(SIGNATURE, "fwd", DEVICE)
    assert (found,) == tuple(database.decide())
    assert vars(found).keys() == {field.name for field in dataclasses.fields(Decision)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.rank = 1


def test_looking_up_a_decision_leaves_no_read_transaction(database):
    database.record(begin(database), make_trial())
    database.rebuild_decisions()
    with Database.open(database.path, read_only=True) as reader:
        assert reader.decision(SIGNATURE, "fwd", DEVICE) is not None
        with sqlite3.connect(database.path) as raw:
            busy, *_ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert not busy


def test_a_reader_sees_a_newer_decision(database):
    run = begin(database)
    database.record(run, make_trial(config={"block_q": 64}))
    database.rebuild_decisions()
    with Database.open(database.path, read_only=True) as reader:
        assert reader.decision(SIGNATURE, "fwd", DEVICE).config == {"block_q": 64}
        database.record(run, make_trial(config={"block_q": 32}, samples=(10, 10, 10)))
        database.rebuild_decisions()
        assert reader.decision(SIGNATURE, "fwd", DEVICE).config == {"block_q": 32}


def test_a_decision_made_later_is_found(database):
    database.record(begin(database), make_trial())
    with Database.open(database.path, read_only=True) as reader:
        for one in (database, reader):
            assert one.decision(SIGNATURE, "fwd", DEVICE) is None
        database.rebuild_decisions()
        for one in (database, reader):
            assert one.decision(SIGNATURE, "fwd", DEVICE).config == make_trial().config
