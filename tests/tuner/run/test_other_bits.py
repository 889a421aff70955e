"""A config whose bits differ from run to run is chosen only by a sweep that asked for such."""

import dataclasses

import pytest

from attn_tune.db import RecordedTrial, decide
from attn_tune.schema.trial import Stage, Status, Trial
from attn_tune.tuner.plan.planner import make_plan
from attn_tune.tuner.run.sweep import sweep
from tests.tuner.replay import ReplayExecutor, one_launch

TIMES = {("k", "", size): us * 1000 for size, us in [(4, 100), (8, 70), (16, 50)]}
PLACES = ["search", "features", "finals"]


def swept(point, device, environment, spec, where, *, allow):
    plan = make_plan(
        [point],
        kernels=[spec],
        device=device,
        environment=environment,
        directions=["fwd"],
        allow_nondeterministic=allow,
    )
    executor = ReplayExecutor(TIMES, wavering={16: where})
    trials = [e for e in sweep(plan, executor) if isinstance(e, Trial)]
    (decision,) = decide([RecordedTrial(1, trial) for trial in trials])
    return trials, decision


@pytest.mark.parametrize("where", PLACES)
def test_different_bits_are_refused_without_permission_in_every_phase(point, device, environment, where):
    spec = one_launch("k", [8, 16])
    trials, decision = swept(point, device, environment, spec, where, allow=False)
    assert (decision.config["size"], decision.repeatable) == (8, True)
    refused = [t for t in trials if t.status is Status.UNSUPPORTED]
    assert [(t.config["size"], t.repeatable) for t in refused] == [(16, False)]
    assert refused[0].stage is (Stage.FINAL if where == "finals" else Stage.SEARCH)
    assert "different bits; --allow-nondeterministic takes such configs" in refused[0].reason


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("backend", ["xla", "cudnn"])
def test_a_config_with_different_bits_wins_with_permission_or_from_a_library(
    point, device, environment, where, backend
):
    spec = dataclasses.replace(one_launch("k", [8, 16]), backend=backend)
    allow = backend == "xla"
    trials, decision = swept(point, device, environment, spec, where, allow=allow)
    assert {t.status for t in trials} == {Status.OK}
    assert (decision.config["size"], decision.repeatable) == (16, False)
