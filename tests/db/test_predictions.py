"""Predictions: apart from measurements, in packs only on request, and never above a measurement."""

import dataclasses

import pytest

from attn_tune.db import Database, export_pack
from attn_tune.packs.reader import read_pack
from attn_tune.schema import Environment, NoDataError, Prediction, Rule, Shortage, Status
from tests.db.facts import OTHER_DEVICE, SIGNATURE, begin, make_trial

COMPILE_ONLY = Environment(
    jax="0.12.0", jaxlib="0.12.0", compiler="libtpu 1", driver="compile-only", source_hash="b2:s"
)
KERNEL = "flash_attention/pallas_tpu_splash"


def predicted(block, ns, **changes):
    """A trial that was compiled and whose time was predicted."""
    prediction = Prediction(ns=ns, low_ns=ns // 2, high_ns=ns * 2, model="m 1", terms={"a_ns": 1.5})
    values = {"kernel": KERNEL, "device": OTHER_DEVICE, "environment": COMPILE_ONLY, **changes}
    return make_trial({"block_q": block}, status=Status.PREDICTED, reason="", prediction=prediction, **values)


def open_with(path, *trials):
    """A database with these trials."""
    database = Database.open(path, create=True)
    run = begin(database, device=OTHER_DEVICE, environment=COMPILE_ONLY)
    for trial in trials:
        database.record(run, trial)
    database.end_run(run, "finished")
    return database


def test_predictions_and_shortages_come_back_and_decide_nothing(tmp_path):
    lack = make_trial(
        {"block_q": 4096},
        status=Status.OUT_OF_RESOURCES,
        shortage=Shortage(resource="vmem", needed=40 << 20, limit=32 << 20),
        device=OTHER_DEVICE,
        environment=COMPILE_ONLY,
    )
    stored = (predicted(128, 4_000_000), predicted(1024, 1_000_000), lack)
    with open_with(tmp_path / "lab.db", *stored) as database:
        assert tuple(database.trials()) == stored
        assert database.integrity_check() == ()
        assert database.rebuild_decisions() == 0
        assert list(database.decide()) == []
        frame = database.frame("trials")
        assert frame["median_us"].isna().all()
        assert frame["predicted_ns"].tolist()[:2] == [4_000_000, 1_000_000]
        assert (frame["needed"].iloc[2], frame["limit"].iloc[2]) == (40 << 20, 32 << 20)


def test_a_pack_holds_predictions_only_when_they_are_allowed(tmp_path):
    trials = (predicted(128, 4_000_000, is_heuristic=True), predicted(1024, 1_000_000))
    with open_with(tmp_path / "lab.db", *trials) as database:
        with pytest.raises(NoDataError, match="only predictions for everything; --allow-predicted"):
            export_pack(database, tmp_path / "none", name="none", version="1")
        export_pack(database, tmp_path / "pack", name="pack", version="1", allow_predicted=True)
    (row,) = read_pack(tmp_path / "pack").rows
    assert row.state == Rule.PREDICTED
    assert dict(row.config) == {"block_q": 1024}
    assert (row.median_ns, row.samples) == (None, 0)
    assert row.gain_ppm == 3_000_000


def test_a_prediction_whose_whole_program_failed_is_not_exported(tmp_path):
    failed = dataclasses.replace(
        predicted(1024, 1_000_000),
        status=Status.OUT_OF_RESOURCES,
        reason="as a whole program: no room",
        prediction=None,
        started_us=predicted(1024, 1_000).started_us + 1,
    )
    trials = (predicted(1024, 1_000_000), predicted(128, 4_000_000), failed)
    with open_with(tmp_path / "lab.db", *trials) as database:
        export_pack(database, tmp_path / "pack", name="pack", version="1", allow_predicted=True)
    (row,) = read_pack(tmp_path / "pack").rows
    assert dict(row.config) == {"block_q": 128}


def test_any_measurement_wins(tmp_path):
    trials = (
        predicted(1024, 1_000),
        predicted(1024, 1_000, direction="bwd"),
        make_trial({"block_q": 256}, (9_000,) * 12, kernel=KERNEL, device=OTHER_DEVICE),
    )
    with open_with(tmp_path / "lab.db", *trials) as database:
        export_pack(
            database,
            tmp_path / "pack",
            name="pack",
            version="1",
            ungated="a test",
            allow_predicted=True,
        )
    rows = {row.direction: row for row in read_pack(tmp_path / "pack").rows}
    assert rows["fwd"].state != Rule.PREDICTED
    assert dict(rows["fwd"].config) == {"block_q": 256}
    assert rows["bwd"].state == Rule.PREDICTED
    assert rows["fwd"].signature == SIGNATURE.text
