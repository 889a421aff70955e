"""Configs, trials and environments refuse what cannot be."""

import dataclasses
import math

import pytest

from attn_tune.schema import (
    Device,
    Environment,
    Grade,
    Measurement,
    OutputError,
    Protocol,
    Signature,
    Status,
    Trial,
    UsageError,
    config_digest,
    config_from_dict,
    config_to_dict,
)
from attn_tune.schema.digest import canonical_json


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    block: int
    warps: int = 4

    def __post_init__(self):
        if self.block % 16:
            raise ValueError(f"{self.block=} must be a multiple of 16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Whole:
    dq: Part
    dkv: Part
    stages: int | None = None


WHOLE = Whole(dq=Part(block=64), dkv=Part(block=32, warps=8))


def test_a_config_survives_its_plain_form():
    assert config_from_dict(Whole, config_to_dict(WHOLE)) == WHOLE
    assert config_digest(WHOLE) == config_digest(config_to_dict(WHOLE))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"dq": {"block": 63}}, "multiple of 16"),
        ({"dq": {"block": 64.0}}, "must be int"),
        ({"dq": {"block": True}}, "must be int"),
        ({"dq": {"warps": 4}}, "needs the knob 'block'"),
        ({"dq": {"block": 64, "blok": 1}}, "no knob 'blok'"),
        ({"dq": 3}, "must be an object"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(change, complaint):
    with pytest.raises(UsageError, match=complaint):
        config_from_dict(Whole, config_to_dict(WHOLE) | change)


def test_json_refuses_nan():
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"x": math.nan})


SIGNATURE = Signature("op", 1, (("b", 1),))
DEVICE = Device(platform="cpu", family="x86_64", variant="cpu-x86_64")
ENVIRONMENT = Environment(jax="0.12", jaxlib="0.12", source_hash="s")
MEASUREMENT = Measurement(samples_ns=(3, 1, 2), protocol=Protocol(timer="host", warmup=1, flush_l2=False))


def trial(**kw):
    facts = {
        "kernel": "op/k",
        "direction": "fwd",
        "signature": SIGNATURE,
        "device": DEVICE,
        "environment": ENVIRONMENT,
        "config": {},
    }
    return Trial(**(facts | kw))


def test_a_measurement_exists_if_and_only_if_the_trial_ran_right():
    for status in (Status.OK, Status.UNPROVEN):
        assert trial(status=status, measurement=MEASUREMENT).measurement.median_ns == 2
        with pytest.raises(ValueError, match="if and only if"):
            trial(status=status)
    for status in set(Status) - {Status.OK, Status.UNPROVEN}:
        with pytest.raises(ValueError, match="if and only if"):
            trial(status=status, measurement=MEASUREMENT, reason="r")


def test_a_status_says_what_it_means():
    said = {s: (s.is_measured, s.is_fine, s.is_failure, s.bars) for s in Status}
    failed = (False, False, True, False)
    assert said == {
        Status.OK: (True, True, False, False),
        Status.UNPROVEN: (True, True, False, False),
        Status.INCORRECT: (False, False, True, True),
        Status.UNSUPPORTED: (False, False, False, False),
        Status.OUT_OF_RESOURCES: failed,
        Status.COMPILE_ERROR: failed,
        Status.RUNTIME_ERROR: failed,
        Status.CRASHED: (False, False, True, True),
        Status.TIMED_OUT: failed,
        Status.COMPILED: (False, True, False, False),
        Status.PREDICTED: (False, True, False, False),
    }


def test_the_other_traits_of_a_status_follow_its_meaning():
    def those(trait):
        return {status.value for status in Status if getattr(status, trait)}

    assert those("is_offline") == {"compiled", "predicted"}
    assert those("is_refused") == {"unsupported"}
    assert those("was_tried") == set(map(str, Status)) - {"compiled", "predicted", "unsupported"}
    assert those("does_not_fit") == {"unsupported", "out_of_resources"}
    failures = {"out_of_resources", "compile_error", "timed_out", "crashed"}
    assert those("needs_no_device") == {"compiled", "predicted", *failures}


def test_features_are_a_count():
    with pytest.raises(ValueError, match="features is a count"):
        trial(status=Status.OK, measurement=MEASUREMENT, features=-1)


def test_a_failure_needs_a_reason():
    with pytest.raises(ValueError, match="needs a reason"):
        trial(status=Status.CRASHED)
    with pytest.raises(ValueError, match="direction"):
        trial(status=Status.CRASHED, reason="r", direction="side ways")


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_an_output_that_is_not_a_number_never_passes(error):
    assert OutputError(output="dq", error=error, allowed=1.0).ratio == math.inf
    assert OutputError(output="dq", error=0.0, allowed=0.0).ratio == math.inf


def test_evidence_does_not_identify_a_device():
    marked = dataclasses.replace(DEVICE, evidence=(("uuid", "GPU-1"),))
    assert marked == DEVICE
    assert marked.digest == DEVICE.digest
    assert dataclasses.replace(DEVICE, partition="1g.18gb").digest != DEVICE.digest


@pytest.mark.parametrize(
    ("row", "grade"),
    [
        ({}, Grade.VERIFIED),
        ({"driver": "570"}, Grade.VERIFIED),
        ({"jaxlib": "0.11"}, Grade.PORTABLE),
        ({"triton": "3.6"}, Grade.PORTABLE),
        ({"source_hash": "other"}, Grade.STALE),
        ({"source_hash": ""}, Grade.STALE),
    ],
)
def test_environment_grades(row, grade):
    here = dataclasses.replace(ENVIRONMENT, driver="580")
    assert here.grade(dataclasses.replace(ENVIRONMENT, **row)) is grade
    assert here.grade(ENVIRONMENT, contract=2, row_contract=1) is Grade.FOREIGN


def test_unknown_never_equals_unknown():
    blank = Environment(jax="", jaxlib="")
    assert blank.grade(blank) is Grade.STALE
