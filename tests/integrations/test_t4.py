"""Trials as T4, the exchange format of autotuning results."""

import dataclasses
import datetime
import json

import pytest

from attn_tune.integrations.t4 import results
from attn_tune.schema import Measurement, OutputError, Protocol, Resources, Stage, Status, Trial
from attn_tune.schema.trial import Prediction
from tests.db.facts import DEVICE, ENVIRONMENT, NEWER, make_signature

TRIAL = Trial(
    kernel="flash_attention/triton",
    direction="fwd",
    signature=make_signature(),
    device=DEVICE,
    environment=ENVIRONMENT,
    config={"block_q": 64},
    status=Status.OK,
    errors=(OutputError(output="out", error=0.25, allowed=1.0),),
    measurement=Measurement(
        samples_ns=(1_000_000, 3_000_000, 2_000_000), protocol=Protocol(timer="cupti", warmup=1, flush_l2=True)
    ),
    resources=Resources(registers=128),
    compile_ms=812.5,
    started_us=1_700_000_000_000_000,
)
# The keys that the schema of results, 1.0.0, requires, and the values that it allows.
REQUIRED = {"configuration": dict, "times": dict, "invalidity": str, "correctness": int}
INVALIDITIES = {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}


def failed(status, **more):
    return dataclasses.replace(TRIAL, status=status, reason="why", measurement=None, errors=(), **more)


def read(made):
    return {name: json.loads(text) for name, text in made.files.items()}


def check(data):
    """Hold a file of results against what the schema asks, and return the results."""
    assert data["schema_version"] == "1.0.0"
    for one in data["results"]:
        for name, kind in REQUIRED.items():
            assert isinstance(one[name], kind)
        assert one["invalidity"] in INVALIDITIES
        datetime.datetime.fromisoformat(one["timestamp"])
        for name, value in one["times"].items():
            assert isinstance(value, list if name == "runtimes" else float)
        for measured in one["measurements"]:
            assert set(measured) == {"name", "value", "unit"}
            assert isinstance(measured["value"], str | int | float)
    return data["results"]


def test_a_search_is_one_file_of_results_and_one_of_metadata():
    made = results([TRIAL, dataclasses.replace(TRIAL, stage=Stage.FINAL)])
    assert (made.searches, made.trials, len(made.files)) == (1, 2, 2)
    metadata, data = (text for _, text in sorted(read(made).items(), key=lambda item: "metadata" not in item[0]))
    first, second = check(data)
    assert first["configuration"] == {"block_q": 64}
    assert first["times"] == {"compilation_time": 812.5, "runtimes": [1.0, 3.0, 2.0]}
    assert (first["invalidity"], first["correctness"], first["objectives"]) == ("correct", 1, ["time"])
    assert first["timestamp"] == "2023-11-14T22:13:20+00:00"
    seen = {one["name"]: (one["value"], one["unit"]) for one in first["measurements"]}
    assert seen["time"] == (2.0, "ms")
    assert seen["error_out"] == (0.25, "of what is allowed")
    assert seen["registers"] == (128, "")
    assert {"name": "stage", "value": "final", "unit": ""} in second["measurements"]
    assert metadata["schema_version"] == "1.0.0"
    assert metadata["metadata"]["attn_tune"]["search"]["signature"] == TRIAL.signature.text
    assert "jax==0.12.0" in metadata["metadata"]["environment"]["requirements"]
    assert metadata["metadata"]["hardware"]["hardware_description"][0]["variant"] == "nvidia-h200"


@pytest.mark.parametrize(
    ("status", "invalidity"),
    [
        (Status.INCORRECT, "correctness"),
        (Status.UNSUPPORTED, "constraints"),
        (Status.OUT_OF_RESOURCES, "constraints"),
        (Status.COMPILE_ERROR, "compile"),
        (Status.RUNTIME_ERROR, "runtime"),
        (Status.CRASHED, "runtime"),
        (Status.TIMED_OUT, "timeout"),
    ],
)
def test_a_failure_has_its_kind_and_its_reason(status, invalidity):
    made = results([failed(status)])
    (one,) = check(next(data for name, data in read(made).items() if "metadata" not in name))
    assert (one["invalidity"], one["correctness"]) == (invalidity, 0)
    assert {"name": "reason", "value": "why", "unit": ""} in one["measurements"]
    assert "runtimes" not in one["times"]


def test_an_infinite_error_leaves_the_file_json():
    nan = OutputError(output="out", error=float("nan"), allowed=1.0)
    made = results([dataclasses.replace(failed(Status.INCORRECT), errors=(nan,))])
    check(next(data for name, data in read(made).items() if "metadata" not in name))


def test_other_problems_parts_devices_and_environments_are_other_files():
    others = [
        dataclasses.replace(TRIAL, signature=make_signature(q_len=256, kv_len=256)),
        dataclasses.replace(TRIAL, direction="bwd", part="dq"),
        dataclasses.replace(TRIAL, environment=NEWER),
        dataclasses.replace(TRIAL, device=dataclasses.replace(DEVICE, power_watts=600)),
    ]
    made = results([TRIAL, *others])
    assert (made.searches, len(made.files)) == (5, 10)


@pytest.mark.parametrize("part", ["x/../../../out/evil", "..", "a" * 900, "/etc/x"])
def test_no_name_of_a_database_leads_out_of_the_folder(part):
    made = results([dataclasses.replace(TRIAL, part=part)])
    for name in made.files:
        assert "/" not in name
        assert ".." not in name
        assert len(name) < 200


def test_what_has_no_config_or_did_not_run_is_counted():
    predicted = failed(Status.PREDICTED, prediction=Prediction(ns=3, low_ns=2, high_ns=4, model="m"))
    made = results([TRIAL, failed(Status.UNSUPPORTED, config={}), predicted, failed(Status.COMPILED)])
    assert made.trials == 1
    assert sum(made.left_out.values()) == 3
    assert any("no config" in reason for reason in made.left_out)
