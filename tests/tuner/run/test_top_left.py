"""A kernel that takes no odd length and has the causal edge at the wrong end: right wherever T = S, wrong elsewhere."""

import dataclasses
import json

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app
from attn_tune.schema.trial import Stage, Status
from attn_tune.tuner.plan.planner import make_plan
from attn_tune.tuner.protocol import MeasurePolicy
from attn_tune.tuner.run.sweep import sweep
from tests.in_process import InProcess

POLICY = MeasurePolicy(warmup=1, samples=3, min_samples=1, max_s=0.1, rounds=2)


@pytest.fixture
def validate(monkeypatch, planted):
    monkeypatch.setattr("attn_tune.tuner.run.executor.IsolatedExecutor", InProcess)
    return lambda *words: CliRunner().invoke(app, ["validate", *words])


def test_the_feature_problems_of_a_sweep_find_a_wrong_causal_edge(planted, point, device, environment):
    plan = make_plan(
        [point],
        kernels=[planted["top_left"]],
        device=device,
        environment=environment,
        directions=("fwd",),
    )
    trials = [e for e in sweep(plan, InProcess(), policy=POLICY) if hasattr(e, "status")]
    assert [t.status for t in trials] == [Status.OK, Status.INCORRECT]
    assert trials[-1].reason.startswith("on the feature problem flash_attention/v1 b=1 t=208 s=432 ")
    assert not any(t.stage is Stage.FINAL for t in trials)


def test_validate_finds_a_wrong_causal_edge_on_lengths_that_the_kernel_takes(validate):
    words = ("-k", "top_left", "--feature", "causal_longer_keys", "-d", "fwd", "--json")
    result = validate(*words)
    assert result.exit_code == 1, result.stderr
    rows = {row["problem"]: row["status"] for row in json.loads(result.stdout)["validations"]}
    assert rows == {"causal_longer_keys (t=48 s=112)": "incorrect"}


def test_a_config_that_cannot_be_validated_is_no_success(validate):
    result = validate("-k", "planted_refused", "--feature", "causal_longer_keys", "-d", "fwd")
    assert result.exit_code == 3
    assert result.stderr.splitlines()[-1] == (
        "error: nothing was validated on cpu-x86_64: of 1 check the kernels take none here; "
        "flash_attention/planted_refused refuses causal_longer_keys: it never works here"
    )


def test_a_direction_that_is_not_implemented_is_one_line(validate):
    result = validate("-k", "top_left", "--feature", "plain", "--json")
    (row,) = json.loads(result.stdout)["validations"]
    assert (row["direction"], row["status"]) == ("fwd", "ok")
    assert [line for line in result.stderr.splitlines() if "top_left bwd" in line] == [
        "left out, not implemented: flash_attention/top_left bwd"
    ]
    assert result.exit_code == 0
    alone = validate("-k", "top_left", "-d", "bwd")
    assert alone.exit_code == 3
    assert "do not implement the direction" in alone.stderr


def test_shapes_of_a_grid_are_not_changed(validate, problem):
    odd = dataclasses.replace(problem, q_len=17, kv_len=17).signature.text
    result = validate("-k", "top_left", "--grid", odd, "-d", "fwd", "--json")
    assert result.exit_code == 3
    (row,) = json.loads(result.stdout)["validations"]
    assert (row["status"], row["reason"]) == ("unsupported", "its lengths are multiples of 16")
