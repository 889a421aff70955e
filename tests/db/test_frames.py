"""``Database.frame``: columns, types, filters."""

from pathlib import Path

import pytest

from attn_tune.db import Database
from attn_tune.schema import Status, UsageError
from tests.db.facts import OTHER_DEVICE, SIGNATURE, begin, make_signature, make_trial


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    with Database.open(tmp_path_factory.mktemp("db") / "lab.db", create=True) as database:
        run = begin(database)
        database.record(run, make_trial({"block_q": 64}, is_heuristic=True))
        database.record(run, make_trial({"block_q": 128}, (500, 600)))
        for i in range(3):
            bad = make_trial({"i": i}, status=Status.COMPILE_ERROR, reason="no registers left")
            database.record(run, bad)
        windowed = make_signature(window=(64, None))
        database.record(run, make_trial(signature=windowed, device=OTHER_DEVICE))
        database.rebuild_decisions(signatures=[SIGNATURE])
        yield database


def test_trials(database):
    frame = database.frame("trials")
    assert len(frame) == 6
    first, second = frame.to_dict("records")[:2]
    assert first["median_us"] == 1.0
    assert first["min_us"] == 0.99
    assert first["samples"] == 3
    assert first["is_heuristic"]
    assert first["config"] == '{"block_q":64}'
    assert first["error_ratio"] == pytest.approx(0.2)
    assert (first["sig_n"], first["sig_k"], first["sig_dtype"]) == (4, 2, "bfloat16")
    assert second["median_us"] == 0.55
    assert list(frame["sig_left"].dropna()) == [64]
    assert frame["status"].value_counts().to_dict() == {"ok": 3, "compile_error": 3}
    assert len(database.frame("trials", device=OTHER_DEVICE)) == 1
    assert len(database.frame("trials", status="ok", signature=SIGNATURE)) == 2


def test_columns_have_their_types(database):
    frame = database.frame("trials")
    assert str(frame["started"].dtype).startswith("datetime64")
    assert str(frame["started"].dt.tz) == "UTC"
    assert frame["started"].iloc[0].year == 2023
    assert frame["ended"].isna().all()
    types = {
        "median_us": "float64",
        "compile_ms": "float64",
        "features": "Int64",
        "is_heuristic": "boolean",
        "sig_t": "Int64",
        "cfg_block_q": "Int64",
    }
    assert {name: str(frame[name].dtype) for name in types} == types
    assert frame["cfg_block_q"].dropna().tolist() == [64, 128, 128]
    runs = database.frame("runs")
    assert (runs["heartbeat"] >= runs["started"]).all()
    assert runs["argv"].tolist() == ["attn-tune sweep"]


def test_knobs_of_parts_are_columns_of_their_own(tmp_path):
    with Database.open(tmp_path / "lab.db", create=True) as database:
        database.record(begin(database), make_trial({"dq": {"block_q": 64}, "dkv": {"warps": 4}}))
        database.rebuild_decisions()
        for name in ("trials", "decisions"):
            (row,) = database.frame(name).to_dict("records")
            assert (row["cfg_dq.block_q"], row["cfg_dkv.warps"]) == (64, 4)


def test_the_frames_of_views_are_the_views(database):
    failures = database.frame("failures")
    assert failures["reason"].tolist() == ["no registers left"] * 3
    assert failures["trial_id"].tolist() == [3, 4, 5]
    (winner,) = database.frame("winners").to_dict("records")
    assert (winner["config"], winner["median_us"]) == ('{"block_q":64}', 1.0)
    for name in ("winners", "failures"):
        found = database.frame(name)
        view = database.query(f"SELECT * FROM {name}")
        added = list(found.columns)[len(view.columns) :]
        assert list(found.columns)[: len(view.columns)] == list(view.columns)
        assert {column[:4] for column in added} == {"sig_", "cfg_"}
        assert str(found["sig_t"].dtype) == "Int64"


def test_samples_are_a_frame_with_filters(database):
    found = database.frame("samples")
    assert {name: str(found[name].dtype) for name in ("trial_id", "position", "us")} == {
        "trial_id": "Int64",
        "position": "Int64",
        "us": "float64",
    }
    assert found.loc[found["trial_id"] == 2, "us"].tolist() == [0.5, 0.6]
    assert database.frame("samples", device=OTHER_DEVICE)["trial_id"].unique().tolist() == [6]
    assert len(database.frame("samples", kernel="triton", direction="bwd")) == 0


def test_coverage_shows_what_is_undecided(database):
    rows = database.frame("coverage").to_dict("records")
    assert [(r["device"], r["trials"], r["ok"], r["configs"], r["decided"]) for r in rows] == [
        ("nvidia-h200", 5, 2, 5, 1),
        ("tpu-v6e", 1, 1, 1, 0),
    ]


def test_decisions_and_runs(database):
    (decision,) = database.frame("decisions", rank=0).to_dict("records")
    assert decision["config"] == '{"block_q":64}'
    assert decision["rule"] == "search"
    (run,) = database.frame("runs").to_dict("records")
    assert (run["status"], run["trials"], run["ok"]) == ("running", 6, 3)


@pytest.mark.parametrize("name", ["trials", "decisions", "coverage", "runs", "winners", "failures", "samples"])
def test_an_empty_database_has_empty_frames_with_columns(tmp_path, name):
    with Database.open(tmp_path / "lab.db", create=True) as database:
        frame = database.frame(name)
    assert frame.empty
    assert len(frame.columns) > 3


def test_unknown_names_are_refused(database):
    with pytest.raises(UsageError, match="did you mean 'trials'"):
        database.frame("trails")
    with pytest.raises(UsageError, match="'rank'"):
        database.frame("trials", rank=0)


def test_describe_counts(database):
    described = database.describe()
    assert described.counts["trial"] == 6
    assert described.counts["decision"] == 1
    assert described.journal_mode == "wal"
    assert described.size_bytes > 10_000
    assert database.integrity_check() == ()


def test_the_page_lists_the_columns_of_the_frame_of_trials(database):
    page = (Path(__file__).resolve().parents[2] / "docs" / "database.md").read_text()
    listed = page.split("<!-- generated: frame-trials -->\n")[1].split("<!-- end -->")[0]
    plain = [name for name in database.frame("trials") if not name.startswith(("sig_", "cfg_"))]
    assert [word.strip("`") for word in listed.replace("\n", " ").rstrip(" .").split(", ")] == plain
