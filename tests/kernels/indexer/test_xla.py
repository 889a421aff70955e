"""The XLA kernel of ``indexer`` against numpy, with steps that divide the queries and that do not."""

import functools

import jax
import numpy as np
import pytest

from attn_tune.kernels.indexer.xla.config import Config
from attn_tune.kernels.indexer.xla.kernel import forward
from attn_tune.ops.indexer.features import samples
from attn_tune.ops.indexer.inputs import make_inputs
from tests.kernels.indexer.dense_numpy import assert_right


def case(name):
    problem = samples()[name]
    return problem, jax.jit(functools.partial(make_inputs, problem, "fwd"))(1)


@pytest.mark.parametrize(("name", "rows"), [("edges", 4), ("more_queries_than_keys", 64), ("everything", 1)])
def test_scores_of_the_indexer_are_right(name, rows):
    problem, operands = case(name)
    assert_right(problem, operands, jax.jit(functools.partial(forward, problem, Config(rows=rows)))(operands))


def test_the_comparison_of_the_indexer_sees_one_wrong_score():
    problem, operands = case("edges")
    outputs = forward(problem, Config(rows=16), operands)
    wrong = np.array(outputs["scores"])
    wrong[0, 0, 5] += 1
    with pytest.raises(AssertionError, match="Mismatched elements: 1 /"):
        assert_right(problem, operands, outputs | {"scores": wrong})
