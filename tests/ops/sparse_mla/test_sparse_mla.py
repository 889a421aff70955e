"""The contract of ``sparse_mla``: problems, inputs at the edges, the reference, and what is counted."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from attn_tune.ops.sparse_mla.features import features, samples
from attn_tune.ops.sparse_mla.inputs import make_inputs
from attn_tune.ops.sparse_mla.op import OP
from attn_tune.ops.sparse_mla.problem import ANY, Problem, bytes_moved, flops, selected
from attn_tune.ops.sparse_mla.reference import baseline, reference
from attn_tune.schema.errors import UsageError
from tests.kernels.sparse_mla.dense_numpy import assert_right

SMALL = Problem(batch=2, q_len=5, kv_len=30, num_q_heads=3, head_dim=24, v_head_dim=16, num_selected=12, scale=0.2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_selected": 0}, "top=0 (num_selected) must be a positive integer"),
        ({"head_dim": 8}, "values are columns of keys, got h=8 below v=16"),
        ({"dtype": "int8"}, "dtype='int8' must be one of"),
        ({"workload": "eq"}, "workload='eq' must be one of causal, any"),
    ],
)
def test_an_impossible_problem_of_sparse_mla_is_refused_by_name(change, words):
    with pytest.raises(UsageError) as refused:
        dataclasses.replace(SMALL, **change)
    assert words in str(refused.value)


def test_signatures_of_all_samples_of_sparse_mla_are_read_back():
    for problem in samples().values():
        assert OP.from_signature(OP.parse_signature(problem.signature.text)).signature == problem.signature


@pytest.mark.parametrize("workload", ["causal", ANY])
def test_a_query_names_each_of_its_keys_once_and_as_many_as_are_counted(workload):
    problem = dataclasses.replace(SMALL, q_len=30, workload=workload)
    indices = np.asarray(jax.jit(functools.partial(make_inputs, problem, "fwd"))(3).indices)
    total = 0
    for sequence, query in np.ndindex(2, 30):
        found = [i for i in indices[sequence, query].tolist() if i >= 0]
        assert len(set(found)) == len(found) == min(12, problem.selectable(query))
        assert max(found) < problem.selectable(query)
        total += len(found)
    assert total == selected(problem)


def test_inputs_of_sparse_mla_at_the_edges_have_every_kind_of_row():
    problem = dataclasses.replace(SMALL, at_edges=True)
    operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(1)
    indices = np.asarray(operands.indices)
    valid = (indices >= 0) & (indices < 30)
    # Most of the first indices name nothing, and those behind them name keys.
    rows = valid.reshape(10, 12)
    assert (~rows[:, :9].any(1) & rows[:, 9:].all(1)).any()
    # Keys behind the query's own are named too.
    assert (
        np.where(valid, indices, 0).max(-1) >= np.asarray([SMALL.kv_len - SMALL.q_len + 1 + i for i in range(5)])
    ).any()
    counts = rows.sum(1)
    assert {0, 12} <= set(counts)
    assert (np.diff(valid.reshape(10, 12).astype(int), axis=1) != 0).any()
    assert ((indices >= 30) & (indices < 50)).any()
    assert {-1, 2**31 - 1, -(2**31)} & set(indices.ravel().tolist())
    uniques = [
        len(set(row[ok].tolist())) for row, ok in zip(indices.reshape(10, 12), valid.reshape(10, 12), strict=True)
    ]
    assert any(few == 1 and count == 12 for few, count in zip(uniques, counts, strict=True))
    named = np.zeros((2, 30), bool)
    for sequence in range(2):
        named[sequence, indices[sequence][valid[sequence]]] = True
    assert not named.all()
    np.testing.assert_array_equal(np.isnan(np.asarray(operands.kv, np.float32)).all(-1), ~named)


@pytest.mark.parametrize("name", ["edges", "more_indices_than_keys", "sinks_edges", "everything"])
def test_the_reference_and_the_baseline_of_sparse_mla_are_those_of_numpy(name):
    problem = samples()[name]
    operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(2)
    exact, plain = (jax.jit(functools.partial(f, problem, "fwd"))(operands) for f in (reference, baseline))
    assert_right(dataclasses.replace(problem, dtype="float32"), operands, exact)
    assert_right(problem, operands, plain)


def test_operations_and_bytes_of_sparse_mla_are_those_of_what_is_selected():
    one = dataclasses.replace(SMALL, batch=1, q_len=1)
    assert flops(one, "fwd") == 2 * 3 * 12 * (24 + 16)
    assert bytes_moved(one, "fwd") == 12 * 24 * 2 + 3 * (40 * 2 + 4) + 12 * 4
    few = dataclasses.replace(one, kv_len=4)
    assert flops(few, "fwd") == 2 * 3 * 4 * 40
    assert flops(dataclasses.replace(SMALL, q_len=30), "fwd") == 2 * 2 * 3 * (sum(range(1, 12)) + 19 * 12) * 40


def test_feature_problems_of_sparse_mla_keep_heads_widths_and_dtype():
    for problem in samples().values():
        small = features(problem)
        assert any(one.at_edges for one in small)
        # All kinds of rows with one query each, too.
        assert any(one.at_edges and one.q_len == 1 and one.batch > 6 and one.scale != problem.scale for one in small)
        for one in small:
            assert one.num_q_heads in (problem.num_q_heads, 2 * problem.num_q_heads)
            kept = ("head_dim", "v_head_dim", "dtype", "has_sinks")
            assert [getattr(one, name) for name in kept] == [getattr(problem, name) for name in kept]
