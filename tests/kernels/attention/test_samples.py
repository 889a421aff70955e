"""Samples of the dense attention op: the kernel is right on each of them, forward and backward."""

import functools

import jax
import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.registry import get_kernel
from attn_tune.ops import tolerance
from attn_tune.ops.attention.features import samples
from attn_tune.ops.attention.op import OP
from attn_tune.ops.contract import load
from tests.chosen import chosen

SAMPLES = samples()


def test_each_sample_is_a_problem_of_its_own():
    assert len(set(SAMPLES.values())) == len(SAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    chosen(
        SAMPLES,
        # A window and a mask are beside plain attention in test_attention.py, and together with others here.
        ("bfloat16", "causal_longer_keys", "causal_longer_queries", "bias_shared_batch", "everything"),
    ),
)
def test_the_kernel_is_right_on_each_sample_in_both_directions(name):
    problem, cpu = SAMPLES[name], device_from_kind("cpu")
    spec = get_kernel("attention/xla")

    # Drawn without a program, which would take longer to compile than those of single arrays that all samples share.
    inputs = {direction: load(OP.inputs)(problem, direction, 0) for direction in OP.directions}
    configs = {direction: spec.searches[direction].heuristic(problem, cpu) for direction in OP.directions}

    def answers(inputs, direction):
        paths = (functools.partial(load(spec.searches[direction].call), problem, configs[direction]),)
        paths += tuple(functools.partial(load(path), problem, direction) for path in (OP.reference, OP.baseline))
        return [path(inputs[direction]) for path in paths]

    # One program, in which both directions share the forward of each path.
    found = jax.jit(lambda inputs: [answers(inputs, direction) for direction in OP.directions])(inputs)
    for direction, (outputs, reference, baseline) in zip(OP.directions, found, strict=True):
        assert spec.unsupported(problem, direction, cpu) is None
        errors = tolerance.compare(outputs, reference, baseline, OP.outputs(problem, direction))
        assert max(error.ratio for error in errors) <= 1, direction
