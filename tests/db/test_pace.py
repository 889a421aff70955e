"""``Database.pace``: the cost of a config on a device, for the estimate of a plan."""

import sqlite3

import pytest

from attn_tune.db import Database
from attn_tune.schema import Status
from attn_tune.schema.trial import Stage
from tests.db.facts import DEVICE, OTHER_DEVICE, begin, make_trial


def record(path, count: int, seconds: float, **changes) -> None:
    """A run of ``count`` searched configs that took ``seconds``."""
    with Database.open(path, create=True) as database:
        run = begin(database, changes.get("device", DEVICE))
        for size in range(count):
            database.record(run, make_trial({"size": size}, **changes))
        database.record(run, make_trial({"size": 0}, stage=Stage.FINAL, **changes))
        database.record(run, make_trial({"size": -1}, status=Status.UNSUPPORTED, **changes))
        database.end_run(run, "finished")
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE run SET ended = strftime('%Y-%m-%dT%H:%M:%fZ', started, ?) WHERE id = ?",
            (f"{seconds} seconds", run),
        )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lab.db"


def pace(path, device=DEVICE):
    """Seconds a config, and the number of configs that this was seen with; None without any."""
    with Database.open(path, read_only=True) as database:
        found = database.pace(device)
    return found and (pytest.approx(found.seconds, abs=1e-3), found.configs)


def test_pace_counts_configs_that_ran(path):
    record(path, 10, 5.0)
    assert pace(path) == (0.5, 10)


def test_pace_is_that_of_the_last_runs_that_are_long_enough_together(path):
    record(path, 30, 300.0)
    record(path, 20, 5.0)
    assert pace(path) == (0.25, 20)
    record(path, 3, 60.0)
    assert pace(path) == (65 / 23, 23)


def test_pace_of_few_configs_is_known_too(path):
    record(path, 2, 6.0)
    assert pace(path) == (3.0, 2)


def test_pace_ignores_other_devices(path):
    record(path, 10, 5.0, device=OTHER_DEVICE)
    assert pace(path) is None
    assert pace(path, OTHER_DEVICE) == (0.5, 10)
