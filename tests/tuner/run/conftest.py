"""A plan of the forward of one small problem."""

import pytest

from attn_tune.tuner.plan.planner import make_plan


@pytest.fixture
def plan_for(point, device, environment):
    def plan_for(*specs, **kwargs):
        return make_plan(
            [point],
            kernels=specs,
            device=device,
            environment=environment,
            directions=["fwd"],
            **kwargs,
        )

    return plan_for
