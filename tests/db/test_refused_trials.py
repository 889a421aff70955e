"""Trials that a database refuses, as they could not be read back, and rows of such trials that it holds already."""

import math

import pytest

from attn_tune.db import Database
from attn_tune.db.store import references
from attn_tune.schema import IntegrityError, Prediction, Resources, Signature, UsageError
from attn_tune.schema.conditions import Conditions
from tests.db.facts import SIGNATURE, begin, make_trial

OF_ANOTHER_TYPE = Signature(SIGNATURE.op, SIGNATURE.version, (*SIGNATURE.items, ("bias", 1)))


@pytest.fixture
def database(tmp_path):
    with Database.open(tmp_path / "lab.db", create=True) as database:
        yield database


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"compile_ms": math.nan}, "compile_ms of a trial is a finite number of at least 0, got nan"),
        ({"prove_ms": math.inf}, "prove_ms .* got inf"),
        ({"run_ms": -5}, "run_ms .* got -5"),
        ({"started_us": -(10**20)}, "started_us of a trial is Unix time between 1970 and 2262"),
        ({"ended_us": 253_402_300_799_000_000}, "ended_us of a trial is Unix time"),
        ({"samples": (math.nan,)}, "positive samples, whole nanoseconds"),
        ({"samples": (1.5,)}, "positive samples"),
        ({"samples": (2**64,)}, "positive samples"),
    ],
)
def test_a_trial_that_could_not_be_read_back_cannot_be_made(changes, said):
    with pytest.raises(UsageError, match=said):
        make_trial(**changes)


def test_a_prediction_of_a_fraction_of_a_nanosecond_cannot_be_made():
    with pytest.raises(UsageError, match="whole nanoseconds"):
        Prediction(ns=2.5, low_ns=1, high_ns=3, model="m")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"signature": OF_ANOTHER_TYPE}, "signature field bias=1 of flash_attention must be a word"),
        ({"config": {"rows": math.nan}}, "a trial of flash_attention/triton cannot be stored: .*JSON"),
        ({"config": {"rows": object()}}, "cannot be stored"),
        ({"resources": Resources(registers=2**70)}, "cannot be stored"),
        ({"resources": Resources(registers=1.5)}, "cannot be stored: cannot store REAL value"),
        ({"conditions": Conditions(power_w=(math.inf, 1))}, "cannot be stored"),
    ],
)
def test_a_trial_that_could_not_be_read_back_is_not_recorded(database, changes, said):
    run = begin(database)
    with pytest.raises(UsageError, match=said):
        database.record(run, make_trial(**changes))
    assert database.record(run, make_trial()) == 1
    assert database.frame("trials")["signature"].to_list() == [SIGNATURE.text]
    assert database.integrity_check() == ()


def test_a_stored_signature_with_a_field_of_another_type_is_named(database, monkeypatch):
    with monkeypatch.context() as past_the_check:
        past_the_check.setattr(references, "_check_types", lambda signature: None)
        database.record(begin(database), make_trial(signature=OF_ANOTHER_TYPE))
    for read in (lambda: database.frame("trials"), lambda: list(database.trials()), database.rebuild_decisions):
        with pytest.raises(IntegrityError, match=r"row .*bias=1' of signature cannot be read: .* a word") as raised:
            read()
        assert raised.value.exit_code == 5


def test_a_field_that_a_newer_version_added_is_kept(database):
    newer = Signature(SIGNATURE.op, SIGNATURE.version, (*SIGNATURE.items, ("newer", 1)))
    database.record(begin(database), make_trial(signature=newer))
    assert [trial.signature for trial in database.trials()] == [newer]
