"""Samples of the dense attention op: the kernel is right on each of them, forward and backward."""

import jax
import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.registry import get_kernel
from attn_tune.ops import tolerance
from attn_tune.ops.attention.features import samples
from attn_tune.ops.attention.op import OP
from attn_tune.ops.contract import load

SAMPLES = samples()


def test_each_sample_is_a_problem_of_its_own():
    assert len(set(SAMPLES.values())) == len(SAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("direction", OP.directions)
@pytest.mark.parametrize("name", SAMPLES)
def test_the_kernel_is_right_on_each_sample(name, direction):
    problem, cpu = SAMPLES[name], device_from_kind("cpu")
    spec = get_kernel("attention/xla")
    assert spec.unsupported(problem, direction, cpu) is None
    config = spec.searches[direction].heuristic(problem, cpu)
    inputs = jax.jit(lambda seed: load(OP.inputs)(problem, direction, seed))(0)
    reference, baseline, outputs = jax.jit(
        lambda inputs: (
            load(OP.reference)(problem, direction, inputs),
            load(OP.baseline)(problem, direction, inputs),
            load(spec.searches[direction].call)(problem, config, inputs),
        )
    )(inputs)
    errors = tolerance.compare(outputs, reference, baseline, OP.outputs(problem, direction))
    assert max(error.ratio for error in errors) <= 1
