"""Kills and crowds, at a size that fits; the recorded runs are larger."""

import shutil
import tempfile
from pathlib import Path

import pytest

from attn_tune.db import Database
from tests.soak import kill_database, kill_facts, kill_operations, kill_recording
from tests.soak.crowd import Crowd, problems, run

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def folder_in_memory(monkeypatch):
    """Kills take nothing from the page cache, so that waiting for a disk shows nothing more."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 2**30:
        monkeypatch.setattr(tempfile, "tempdir", str(memory))


def test_kills_lose_and_corrupt_nothing():
    kill_database.warm_up()
    names = list(kill_operations.OPERATIONS)
    tallies = kill_database.torment(len(names), 0, names)
    assert [f"{name}: {f}" for name, t in tallies.items() for f in t.failures] == []
    assert sum(tally.kills for tally in tallies.values()) >= len(names)


@pytest.mark.exhaustive  # the kills are those of the test above
def test_processes_share_the_kills():
    tallies = kill_database.torment_all(3, 0, ["record", "checkpoint"], 2)
    assert set(tallies) == {"record", "checkpoint"}
    assert sum(tally.kills for tally in tallies.values()) >= 3
    assert [f for tally in tallies.values() for f in tally.failures] == []


class Forgetful(kill_recording.Record):
    """Acknowledges what it never stores."""

    def act(self, say):
        with Database.open(self.path, create=True):
            say(self.next)


class Torn(kill_recording.RecordMany):
    """Takes several transactions for what should be one."""

    def act(self, say):
        with Database.open(self.path, create=True) as database:
            kill_facts.fill(database, range(self.next, self.next + 7))


class Twisted(kill_recording.Record):
    """Stores what was not asked for, and reports nothing."""

    def act(self, say):
        with Database.open(self.path, create=True) as database:
            run = database.begin_run(device=kill_facts.DEVICE, environment=kill_facts.ENVIRONMENT, argv=["kill"])
            database.record(run, kill_facts.make_trial(self.next, median=77))


@pytest.mark.parametrize(("operation", "message"), [(Forgetful, "is lost"), (Torn, "7 of 60"), (Twisted, "changed")])
def test_the_battery_notices(monkeypatch, operation, message):
    monkeypatch.setitem(kill_operations.OPERATIONS, "bad", operation)
    with pytest.raises(RuntimeError, match=message):
        kill_database.torment(1, 0, ["bad"])


def test_a_crowd_sees_no_error_and_loses_nothing(tmp_path):
    crowd = Crowd(folder=tmp_path, writers=4, readers=4, seconds=2)
    reports = run(crowd)
    assert [error for report in reports for error in report.errors] == []
    assert problems(crowd, reports) == []
    assert {report.kind for report in reports} == {"sweep", "bring", "derive", "read"}
    assert all(report.took_s for report in reports)
