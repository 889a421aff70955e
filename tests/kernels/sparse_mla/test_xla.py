"""The XLA kernel of ``sparse_mla`` against numpy, with steps that divide the queries and that do not."""

import functools

import jax
import numpy as np
import pytest

from attn_tune.kernels.sparse_mla.xla.config import Config
from attn_tune.kernels.sparse_mla.xla.kernel import forward
from attn_tune.ops.sparse_mla.features import samples
from attn_tune.ops.sparse_mla.inputs import make_inputs
from tests.chosen import chosen
from tests.kernels.sparse_mla.dense_numpy import assert_right


def case(name):
    problem = samples()[name]
    return problem, jax.jit(functools.partial(make_inputs, problem, "fwd"))(1)


@pytest.mark.parametrize(
    ("name", "rows"),
    chosen(
        [("edges", 4), ("edges_any", 16), ("more_indices_than_keys", 1), ("one_query", 4096), ("everything", 4)],
        [("edges_any", 16), ("more_indices_than_keys", 1), ("everything", 4)],
    ),
)
def test_rows_of_sparse_mla_are_right(name, rows):
    problem, operands = case(name)
    assert_right(problem, operands, jax.jit(functools.partial(forward, problem, Config(rows=rows)))(operands))


def test_the_comparison_of_sparse_mla_sees_one_wrong_row():
    problem, operands = case("edges")
    outputs = forward(problem, Config(rows=16), operands)
    wrong = np.array(outputs["out"])
    wrong[1, 3, 2] += 1
    with pytest.raises(AssertionError, match="1 of 84 rows"):
        assert_right(problem, operands, outputs | {"out": wrong})
