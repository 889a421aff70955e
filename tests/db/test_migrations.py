"""Databases of every released schema are brought up to date, with all their facts."""

import contextlib
import sqlite3
import struct
from pathlib import Path

import pytest

from attn_tune.db import Database, connection as connections
from attn_tune.db.migrations import SCHEMA_VERSION
from attn_tune.db.programs import short_digest
from attn_tune.db.samples import decode_samples
from attn_tune.schema import Status, StorageError
from tests.db.facts import begin, make_trial

DATA = Path(__file__).parent / "data"


def old(path, version=1):
    """A database as that schema left it, with a few facts in it."""
    with contextlib.closing(sqlite3.connect(path)) as raw:
        raw.executescript((DATA / f"schema_v{version}.sql").read_text())


OLD_TRIALS = """
SELECT id, run_id, signature_id, config_id, device_id, evidence_id, environment_id, status, stage, reason_id,
       is_heuristic, shared_bytes, registers, spill_bytes, code_digest, compile_ms, started_us FROM trial ORDER BY id
"""
OLD_ERRORS = "SELECT * FROM output_error ORDER BY trial_id, position"
OLD_SAMPLES = (
    "SELECT trial_id, protocol_id, round_id, median_ns, samples FROM measurement ORDER BY 1"
)


def old_facts(path, decode):
    with contextlib.closing(sqlite3.connect(path)) as raw:
        samples = [(*row[:4], decode(*row[3:])) for row in raw.execute(OLD_SAMPLES)]
        return raw.execute(OLD_TRIALS).fetchall(), raw.execute(OLD_ERRORS).fetchall(), samples


def without_program(row):
    """A trial of ``OLD_TRIALS`` but for its code's digest, its compile time and its start."""
    return row[:-3]


def decode_plain(_, blob):
    """Samples as schemas before 4 held them: 8 bytes each."""
    return struct.unpack(f"<{len(blob) // 8}q", blob)


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_every_released_schema_is_migrated(tmp_path, version):
    """Read with SQL on both sides, so that no reader of ours can be wrong twice."""
    path = tmp_path / "old.db"
    old(path, version)
    decode = decode_plain if version < 4 else lambda median, blob: decode_samples(blob, median)
    before = old_facts(path, decode)
    assert len(before[0]) >= 3
    assert len(before[2]) >= 2
    with Database.open(path) as database:
        trials = [repr(t) for t in database.trials()]
        stored = database.decisions()
        database.rebuild_decisions()
        assert database.integrity_check() == ()
        if stored:
            assert database.decisions() == stored
        if version >= 3:
            assert len(database.frame("imported")) == 2
    trials_before, *rest = before
    trials_after, *rest_after = old_facts(path, lambda median, blob: decode_samples(blob, median))
    assert rest_after == rest
    assert [without_program(row) for row in trials_after] == [
        without_program(row) for row in trials_before
    ]
    # All that migrating shortens: schema 6 keeps 12 digits of digests, 12 bits of compile times, whole milliseconds.
    for (*_, digest, ms, started), (*_, old_digest, old_ms, old_started) in zip(
        trials_after, trials_before, strict=True
    ):
        assert 0 <= old_started - started < 1000
        ours = len(old_digest) == 35
        assert digest == (old_digest[:15] if ours else short_digest(old_digest))
        assert ms == (None if old_ms is None else pytest.approx(old_ms, rel=2**-12, abs=0.05))
    with Database.open(path, read_only=True) as database:
        assert [repr(t) for t in database.trials()] == trials
    with Database.open(tmp_path / "new.db", create=True):
        pass
    assert schema(path) == schema(tmp_path / "new.db")


def test_the_first_schema_is_migrated_and_keeps_its_facts(tmp_path):
    old(tmp_path / "old.db")
    with Database.open(tmp_path / "old.db") as database:
        found = list(database.trials())
        assert [t.status for t in found] == [Status.OK, Status.OK, Status.INCORRECT]
        assert found[0].measurement.samples_ns == (20_000, 20_100, 19_900)
        assert found[0].is_heuristic
        assert found[2].errors[0].ratio == pytest.approx(4)
        assert dict(found[0].device.evidence) == {"uuid": "GPU-1", "driver": "570.1"}
        assert database.rebuild_decisions() == 1
        assert database.integrity_check() == ()
        run = begin(database)
        database.record(run, make_trial())
    with Database.open(tmp_path / "new.db", create=True):
        pass
    assert schema(tmp_path / "old.db") == schema(tmp_path / "new.db")


def schema(path):
    with contextlib.closing(sqlite3.connect(path)) as raw:
        rows = raw.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        return {name: " ".join(sql.split()) for name, sql in rows} | {
            "version": raw.execute("PRAGMA user_version").fetchone()
        }


def test_an_old_schema_is_not_migrated_by_a_reader(tmp_path):
    old(tmp_path / "old.db")
    before = (tmp_path / "old.db").read_bytes()
    with pytest.raises(StorageError, match="older schema 1"):
        Database.open(tmp_path / "old.db", read_only=True)
    assert (tmp_path / "old.db").read_bytes() == before


def test_a_failed_migration_leaves_the_old_schema(tmp_path, monkeypatch):
    old(tmp_path / "old.db")
    before = schema(tmp_path / "old.db")
    monkeypatch.setattr(
        connections.migrations(), "_migrations", [*connections.migrations()._migrations]
    )

    @connections.migrations()(name="m999_fails")
    def fail(db):
        db.execute("CREATE TABLE half (id INTEGER)")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Database.open(tmp_path / "old.db")
    assert schema(tmp_path / "old.db") == before


def test_what_compiling_told_moves_with_the_trial(tmp_path):
    old(tmp_path / "old.db", version=5)
    with Database.open(tmp_path / "old.db") as database:
        found = {trial.status: trial for trial in database.trials() if trial.started_us >= 1.76e15}
        others = [t for t in found.values() if t.shortage is None and t.prediction is None]
        lack, guess = found[Status.OUT_OF_RESOURCES].shortage, found[Status.PREDICTED].prediction
        assert (lack.resource, lack.needed, lack.limit) == ("shared", 300_000, 232_448)
        assert (guess.ns, guess.low_ns, guess.high_ns) == (5000, 4000, 7000)
        assert (guess.model, guess.terms) == ("roofline 1", {"visits_ns": 12.5})
        assert len(others) == len(found) - 2
        assert found[Status.PREDICTED].resources.registers is None
        assert found[Status.COMPILED].resources.registers == 128
        assert found[Status.COMPILED].compile_ms == pytest.approx(75_000.25, rel=2**-12)


def test_starts_are_rounded_down_even_before_their_batch(tmp_path):
    """A trial may be recorded after one that started later."""
    with contextlib.closing(sqlite3.connect(tmp_path / "old.db")) as raw:
        raw.executescript((DATA / "schema_v5.sql").read_text())
        raw.execute("DROP TRIGGER trial_data_refuses_update")
        raw.execute("UPDATE trial_data SET started_after_us = -1 WHERE id = 1")
        raw.execute(
            """CREATE TRIGGER trial_data_refuses_update BEFORE UPDATE ON trial_data
            BEGIN SELECT RAISE(ABORT, 'trial_data is append-only'); END"""
        )
        raw.commit()
        (batch_us,) = raw.execute(
            "SELECT started_us FROM trial_batch WHERE first_id = 1"
        ).fetchone()
    with Database.open(tmp_path / "old.db") as database:
        assert next(database.trials()).started_us == batch_us - 1000
