"""The contract of ``indexer``: problems, inputs at the edges, the reference, and what is counted."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from attn_tune.ops.indexer.features import features, samples
from attn_tune.ops.indexer.inputs import make_inputs
from attn_tune.ops.indexer.op import OP
from attn_tune.ops.indexer.problem import ALL, Problem, bytes_moved, flops
from attn_tune.ops.indexer.reference import baseline, reference
from attn_tune.schema.errors import UsageError
from tests.kernels.indexer.dense_numpy import assert_right

SMALL = Problem(batch=2, q_len=8, kv_len=30, num_q_heads=3, head_dim=16)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_q_heads": 0}, "n=0 (num_q_heads) must be a positive integer"),
        ({"dtype": "int8"}, "dtype='int8' must be one of"),
        ({"workload": "eq"}, "workload='eq' must be one of causal, all"),
    ],
)
def test_an_impossible_problem_of_the_indexer_is_refused_by_name(change, words):
    with pytest.raises(UsageError) as refused:
        dataclasses.replace(SMALL, **change)
    assert words in str(refused.value)


def test_signatures_of_all_samples_of_the_indexer_are_read_back():
    for problem in samples().values():
        assert OP.from_signature(OP.parse_signature(problem.signature.text)).signature == problem.signature


def test_inputs_of_the_indexer_at_the_edges_have_every_kind_of_range():
    operands = make_inputs(dataclasses.replace(SMALL, at_edges=True), "fwd", 1)
    length = np.asarray(operands.ends - operands.starts)
    assert (length == 0).any()
    assert (length < 0).any()
    assert (length == 1).any()
    assert (np.asarray(operands.starts) < 0).any()
    # Some ranges go beyond the query's own place under every workload.
    square = dataclasses.replace(SMALL, kv_len=SMALL.q_len + 9, q_len=SMALL.q_len + 9, at_edges=True)
    seen = [square.visible(query) for query in range(square.q_len)]
    assert (np.asarray(make_inputs(square, "fwd", 1).ends) > np.asarray(seen)).any()
    # The last nine keys are in no range.
    np.testing.assert_array_equal(np.isnan(np.asarray(operands.k, np.float32)).all(-1)[:, 21:], True)
    few = make_inputs(dataclasses.replace(SMALL, kv_len=8, workload=ALL, at_edges=True), "fwd", 1)
    assert np.asarray(few.ends).max() == 2**31 - 1
    assert np.asarray(few.starts).min() == -(2**31)


@pytest.mark.parametrize("name", ["edges", "more_queries_than_keys", "everything"])
def test_the_reference_and_the_baseline_of_the_indexer_are_those_of_numpy(name):
    problem = samples()[name]
    operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(2)
    for f in (reference, baseline):
        assert_right(problem, operands, jax.jit(functools.partial(f, problem, "fwd"))(operands))


def test_operations_and_bytes_of_the_indexer_are_those_of_the_ranges():
    assert flops(SMALL, "fwd") == 2 * 2 * sum(range(23, 31)) * 3 * 16
    assert flops(dataclasses.replace(SMALL, workload=ALL), "fwd") == 2 * 2 * 8 * 30 * 3 * 16
    assert bytes_moved(SMALL, "fwd") == 2 * (30 * 16 * 2 + 8 * (3 * (16 * 2 + 4) + 8 + 4 * 30))


def test_feature_problems_of_the_indexer_keep_heads_width_and_dtype():
    for problem in samples().values():
        small = features(problem)
        assert any(one.at_edges for one in small)
        assert any(one.at_edges and one.q_len == 1 and one.scale != problem.scale for one in small)
        for one in small:
            kept = ("num_q_heads", "head_dim", "dtype")
            assert [getattr(one, name) for name in kept] == [getattr(problem, name) for name in kept]
