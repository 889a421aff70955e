"""The queries of docs/database.md on a small database answer what their headings ask."""

import re
import sqlite3
from pathlib import Path

import pytest

from attn_tune.db import Database
from attn_tune.schema import Status
from attn_tune.schema.digest import canonical_json
from attn_tune.schema.trial import twin_round
from tests.db.facts import begin, make_trial

PAGE = Path(__file__).parents[2] / "docs/database.md"
XLA = "flash_attention/xla"
FAST, SLOW, DEFAULT = ({"block_q": size} for size in (128, 64, 32))


def questions():
    """Queries of the page by their questions."""
    return dict(re.findall(r"\*\*([^*]*\?)\*\*.*?```sql\n(.*?)```", PAGE.read_text(), re.DOTALL))


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    path = tmp_path_factory.mktemp("db") / "lab.db"
    final = {"round_id": "r1", "run_ms": 500.0, "prove_ms": None}
    trials = [
        make_trial(DEFAULT, (30_000,) * 10, is_heuristic=True, prove_ms=250.0),
        make_trial(FAST, (10_000,) * 10, point="llama3-8b/4x4k", compile_ms=1000.0),
        make_trial(SLOW, (80_000, 40_000, 20_000)),
        make_trial({"block_q": 8}, status=Status.CRASHED, reason="signal 11\nstack"),
        make_trial({"block_q": 4}, status=Status.CRASHED, reason="signal 11\nanother stack"),
        make_trial({"block_q": 2}, status=Status.UNSUPPORTED, reason="too small"),
        make_trial({"chunk": 1}, (40_000,) * 10, kernel=XLA, is_heuristic=True),
        make_trial(DEFAULT, (30_000,) * 10, is_heuristic=True, **final),
        make_trial(FAST, (10_000,) * 10, **final),
        make_trial(FAST, (10_000,) * 10, **final | {"round_id": twin_round("r1")}),
        make_trial({"chunk": 1}, (40_000,) * 10, kernel=XLA, is_heuristic=True, **final),
    ]
    with Database.open(path, create=True) as database:
        run = begin(database)
        for trial in trials:
            database.record(run, trial)
        database.rebuild_decisions()
    with sqlite3.connect(path) as connection:
        connection.row_factory = sqlite3.Row
        yield connection
    connection.close()


def ask(raw, words):
    (sql,) = (sql for question, sql in questions().items() if words in question)
    return [dict(row) for row in raw.execute(sql)]


def test_the_page_has_five_questions():
    assert len(questions()) == 5


def test_the_slowest_configs_are_compared_with_the_winner(raw):
    rows = ask(raw, "lose most")
    assert [(r["kernel"], r["config"], r["times_slower"]) for r in rows] == [
        ("flash_attention/triton", canonical_json(SLOW), 4.0),
        (XLA, '{"chunk":1}', 4.0),
        ("flash_attention/triton", canonical_json(DEFAULT), 3.0),
        ("flash_attention/triton", canonical_json(FAST), 1.0),
    ]
    assert {r["point"] for r in rows} == {"llama3-8b/4x4k"}


def test_failures_are_counted_by_kernel_and_first_line(raw):
    assert ask(raw, "fail, by kernel") == [
        {
            "kernel": "flash_attention/triton",
            "status": "crashed",
            "reason": "signal 11",
            "trials": 2,
        }
    ]


def test_minutes_are_added_up_by_phase(raw):
    triton, xla = ask(raw, "minutes go")
    assert (triton["kernel"], triton["trials"], triton["prove_s"], triton["run_s"]) == (
        "flash_attention/triton",
        9,
        0.25,
        1.5,
    )
    assert triton["compile_s"] == pytest.approx(1 + 8 * 0.0125)
    assert (xla["prove_s"], xla["run_s"]) == (None, 0.5)


def test_noise_is_the_spread_of_the_samples_of_a_config(raw):
    first, *rest = ask(raw, "noisy")
    assert (first["samples"], first["spread"]) == (3, 4.0)
    assert first["mean_us"] == pytest.approx(140 / 3)
    assert {r["spread"] for r in rest} == {1.0}


def test_a_direction_is_no_noise_of_the_other(tmp_path):
    with Database.open(tmp_path / "lab.db", create=True) as database:
        run = begin(database)
        for direction, ns in (("fwd", 10_000), ("bwd", 40_000)):
            database.record(run, make_trial(FAST, (ns,) * 4, direction=direction))
    with sqlite3.connect(tmp_path / "lab.db") as connection:
        connection.row_factory = sqlite3.Row
        rows = ask(connection, "noisy")
    connection.close()
    assert {(r["direction"], r["samples"], r["spread"]) for r in rows} == {("fwd", 4, 1.0), ("bwd", 4, 1.0)}


def test_each_winner_stands_beside_the_kernels_that_it_beats(raw):
    assert ask(raw, "beats whom") == [
        {
            "point": "llama3-8b/4x4k",
            "direction": "fwd",
            "winner": "flash_attention/triton",
            "beaten": XLA,
            "by": 4.0,
        }
    ]
