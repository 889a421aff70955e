"""The contract of ``merge_attention``: problems, inputs at the edges, the reference, and what is counted."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from attn_tune.ops.merge_attention.features import features, samples
from attn_tune.ops.merge_attention.inputs import make_inputs
from attn_tune.ops.merge_attention.op import OP
from attn_tune.ops.merge_attention.problem import Problem, bytes_moved, flops
from attn_tune.ops.merge_attention.reference import baseline, reference
from attn_tune.schema.errors import UsageError
from tests.kernels.merge_attention.dense_numpy import assert_right

SMALL = Problem(num_rows=10, num_q_heads=3, v_head_dim=16)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_rows": 0}, "r=0 (num_rows) must be a positive integer"),
        ({"v_head_dim": 1.5}, "v=1.5 (v_head_dim) must be a positive integer"),
        ({"num_parts": 1}, "parts=1 (num_parts) must be 2 to 4"),
        ({"num_parts": 5}, "parts=5 (num_parts) must be 2 to 4; merge what was merged with the others"),
        ({"dtype": "int8"}, "dtype='int8' must be one of"),
        ({"out_dtype": "float64"}, "out='float64' (out_dtype) must be one of"),
    ],
)
def test_an_impossible_problem_is_refused_by_name(change, words):
    with pytest.raises(UsageError) as refused:
        dataclasses.replace(SMALL, **change)
    assert words in str(refused.value)


def test_signatures_of_all_samples_are_read_back():
    for problem in samples().values():
        assert OP.from_signature(OP.parse_signature(problem.signature.text)).signature == problem.signature


def test_an_output_of_the_own_dtype_has_one_signature():
    named = dataclasses.replace(SMALL, out_dtype="bfloat16")
    assert named.signature == SMALL.signature
    assert dataclasses.replace(SMALL, out_dtype="float32").signature != SMALL.signature


@pytest.mark.parametrize("parts", [2, 4])
def test_inputs_at_the_edges_have_every_kind_of_row(parts):
    problem = dataclasses.replace(SMALL, num_rows=70, num_parts=parts, at_edges=True)
    operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(1)
    logs = np.stack([lse for _, lse in operands.parts]).reshape(parts, -1)
    empty = np.isneginf(logs)
    assert {0, 1, parts} <= set(empty.sum(0))
    assert empty.any(1).all()
    for (out, _), gone in zip(operands.parts, empty, strict=True):
        is_number = ~np.isnan(np.asarray(out, np.float32)).reshape(gone.size, -1)
        np.testing.assert_array_equal(is_number, np.broadcast_to(~gone[:, None], is_number.shape))
    spread = logs.max(0) - np.where(empty, np.inf, logs).min(0)
    assert (spread[~empty.any(0)] == 0).any()
    assert (spread[~empty.all(0)] > 9000).any()
    assert ((spread > 20) & (spread < 80)).any()
    assert ((logs.max(0) < -100) & ~empty.all(0)).any()


@pytest.mark.parametrize("name", ["at_edges", "four_parts", "narrowed", "odd_width"])
def test_the_reference_and_the_baseline_are_those_of_numpy(name):
    problem = samples()[name]
    operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(2)
    exact, plain = (jax.jit(functools.partial(f, problem, "fwd"))(operands) for f in (reference, baseline))
    assert_right(dataclasses.replace(problem, out_dtype="float32"), operands, exact)
    assert_right(problem, operands, plain)


def test_operations_and_bytes_are_those_of_all_parts():
    for parts, dtype, out, size in ((2, "bfloat16", "same", 2), (3, "float32", "bfloat16", 4)):
        problem = dataclasses.replace(SMALL, num_parts=parts, dtype=dtype, out_dtype=out)
        assert flops(problem, "fwd") == 30 * 16 * 2 * parts
        assert bytes_moved(problem, "fwd") == 30 * (parts * (16 * size + 4) + 16 * 2 + 4)


def test_feature_problems_keep_parts_width_and_dtypes():
    for problem in samples().values():
        small = features(problem)
        assert any(one.at_edges for one in small)
        assert any(one.num_rows == 1 for one in small)
        assert any(one.num_q_heads > 1 for one in small)
        for one in small:
            kept = ("num_parts", "v_head_dim", "dtype", "out_dtype")
            assert [getattr(one, name) for name in kept] == [getattr(problem, name) for name in kept]
