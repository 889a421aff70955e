"""A case of several devices runs on as many CPU devices, and is left out where there are fewer."""

import pytest

from attn_tune.kernels.registry import kernels_of
from attn_tune.schema import Device, Environment, Status
from attn_tune.tuner.plan.planner import make_plan
from attn_tune.tuner.plan.small_problems import features_for
from attn_tune.tuner.protocol import ConfigRef, MeasurePolicy, Run
from tests.planted.planted_battery import PatientExecutor

TEXT = "probe_ring/v1 d=8 s=4 h=16"
DEVICE = Device(platform="cpu", family="x86_64", variant="cpu-x86_64", units=2)


def planned(devices):
    from attn_tune.tuner.plan.grid import load_grid

    return make_plan(
        load_grid(TEXT).points,
        kernels=kernels_of("probe_ring"),
        device=DEVICE,
        environment=Environment(jax="0.0", jaxlib="0.0"),
        device_count=devices,
    )


def test_a_case_of_more_devices_than_there_are_is_refused_with_the_reason():
    (case,) = planned(4).cases
    for kernel in case.kernels:
        (trial,) = kernel.pruned
        assert trial.status is Status.UNSUPPORTED
        assert trial.reason == "the problem needs 8 devices; there are 4 here"
    assert all(kernel.runnable for kernel in planned(8).cases[0].kernels)


@pytest.mark.slow
def test_a_worker_of_eight_devices_proves_and_times_a_mesh_and_finds_what_is_wrong():
    (case,) = planned(8).cases
    policy = MeasurePolicy(samples=2, min_samples=2, warmup=1)
    with PatientExecutor() as executor:
        assert executor.identify().device_count == 8
        outcomes = {
            kernel.kernel.name: executor.run(
                Run(
                    ref=ConfigRef(
                        kernel=kernel.kernel.id,
                        signature=case.case.signature,
                        direction="fwd",
                        config=kernel.heuristic,
                    ),
                    device=DEVICE,
                    policy=policy,
                )
            )
            for kernel in case.kernels
        }
    assert outcomes["psum"].status is Status.OK
    assert outcomes["psum"].measurement is not None
    assert outcomes["broken"].status is Status.INCORRECT


def test_feature_problems_of_a_mesh_need_the_same_devices():
    (spec,) = (k for k in kernels_of("probe_ring") if k.name == "psum")
    (case,) = planned(8).cases
    op = case.case.op
    problem = op.from_signature(case.case.signature)
    found = features_for(op, spec, "fwd", DEVICE, problem, {"step": 1, "defect": ""})
    assert [op.device_count(small) for small, _ in found] == [8, 8]
