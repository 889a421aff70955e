"""The XLA kernel against numpy on samples of every feature."""

import functools

import jax
import numpy as np
import pytest

from attn_tune.kernels.merge_attention.xla.config import Config
from attn_tune.kernels.merge_attention.xla.kernel import forward
from attn_tune.ops.merge_attention.features import samples
from attn_tune.ops.merge_attention.inputs import make_inputs
from tests.kernels.merge_attention.dense_numpy import assert_right


def case(name):
    problem = samples()[name]
    return problem, make_inputs(problem, "fwd", 1)


@pytest.mark.parametrize("name", samples())
def test_rows_are_right(name):
    problem, operands = case(name)
    assert_right(problem, operands, jax.jit(functools.partial(forward, problem, Config()))(operands))


def test_the_comparison_sees_one_wrong_row():
    problem, operands = case("at_edges")
    outputs = forward(problem, Config(), operands)
    wrong = np.array(outputs["out"])
    wrong[3, 1] += 1
    with pytest.raises(AssertionError, match="1 of 148 rows"):
        assert_right(problem, operands, outputs | {"out": wrong})
