"""The contract of ``native_sparse_attention``: problems, workloads, lists of queries, and what is counted."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from attn_tune.kernels.native_sparse_attention._lists.lists import lists_of
from attn_tune.ops.native_sparse_attention.blocks import blocks_of
from attn_tune.ops.native_sparse_attention.features import features, samples
from attn_tune.ops.native_sparse_attention.inputs import make_inputs
from attn_tune.ops.native_sparse_attention.op import OP
from attn_tune.ops.native_sparse_attention.problem import RANDOM, Problem, flops, selected_pairs
from attn_tune.schema.errors import UsageError
from tests.kernels.native_sparse_attention.oracle import named_tokens

PAPER = Problem(
    batch=1, q_len=8192, kv_len=8192, num_q_heads=64, num_kv_heads=4, head_dim=128, v_head_dim=128, num_selected=16
)  # fmt: skip


def operands_of(problem, seed=0):
    return jax.jit(functools.partial(make_inputs, problem, "fwd"))(seed)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block_size": 8}, "block_size=8 (block) must be a power of two between 16 and 256"),
        ({"block_size": 96}, "block_size=96 (block) must be"),
        ({"num_kv_heads": 3}, "n=64 must be a multiple of k=3"),
        ({"workload": "eq"}, "workload='eq' must be one of"),
        ({"is_packed": True, "q_len": 100}, "as many queries as keys, got t=100 and s=8192"),
        ({"num_selected": 0}, "top=0 "),
    ],
)
def test_an_impossible_problem_of_selected_blocks_is_refused_by_name(change, words):
    with pytest.raises(UsageError) as refused:
        dataclasses.replace(PAPER, **change)
    assert words in str(refused.value)


def test_signatures_of_samples_of_selected_blocks_are_read_back():
    for problem in samples().values():
        text = problem.signature.text
        assert OP.from_signature(OP.parse_signature(text)).signature.text == text
    assert "block" not in PAPER.signature.text


@pytest.mark.parametrize("name", ["local", "same", "longer_keys", "packed", "more_named_than_blocks"])
def test_selected_pairs_are_those_that_the_inputs_name(name):
    problem = dataclasses.replace(samples()[name], at_edges=False)
    operands = operands_of(problem)
    indices = np.asarray(operands.indices)
    borders = None if operands.cu_seqlens is None else np.asarray(operands.cu_seqlens)
    counted = sum(named_tokens(problem, indices[b, t, 0], t, borders).size for b, t in np.ndindex(*indices.shape[:2]))
    assert selected_pairs(problem) == counted
    assert flops(problem, "fwd") == 2 * problem.num_q_heads * counted * (problem.head_dim + problem.v_head_dim)


def test_blocks_of_the_workloads_are_distinct_and_those_that_they_promise():
    sizes = {"q_len": 700, "kv_len": 700, "num_q_heads": 2, "num_kv_heads": 2, "head_dim": 16, "v_head_dim": 16}
    problem = dataclasses.replace(PAPER, block_size=16, num_selected=6, **sizes)
    own = np.arange(700)[:, None] // 16
    for workload in ("local", "random", "same"):
        indices = np.asarray(operands_of(dataclasses.replace(problem, workload=workload)).indices)[0]
        named = np.sort(indices, axis=-1)
        assert ((named[..., 1:] > named[..., :-1]) | (named[..., 1:] < 0)).all()
        assert (indices <= own[:, None]).all()
        assert ((indices >= 0).sum(-1) == np.minimum(own + 1, 6)).all()
        if workload == "local":
            for block in (own, np.zeros_like(own), np.maximum(own - 1, 0)):
                assert (indices == block[..., None]).any(-1).all()
        if workload == "random":
            late = named[-100:]
            assert len(np.unique(late)) > 30
            assert late.std() > 8
        if workload == "same":
            assert (indices[200:] == np.arange(6)).all()


def test_lists_hold_every_query_as_often_as_it_names_a_block():
    for name in ("edges", "packed_edges", "longer_queries"):
        problem = samples()[name]
        operands = operands_of(problem)
        blocks = blocks_of(problem, operands.cu_seqlens)
        queries, starts = (np.asarray(x) for x in lists_of(problem, operands, blocks))
        begins = np.asarray(blocks.begins)
        indices = np.asarray(operands.indices)
        borders = None if operands.cu_seqlens is None else np.asarray(operands.cu_seqlens)
        expected = {}
        for b, t, head, entry in np.ndindex(*indices.shape):
            if (tokens := named_tokens(problem, indices[b, t, head, entry : entry + 1].clip(-1, 99), t, borders)).size:
                expected.setdefault((b, head, tokens[0]), []).append(b * problem.q_len + t)
        found = {}
        for owner in range(problem.rows * problem.num_kv_heads * problem.blocks):
            first, end = starts[owner], starts[owner + 1]
            row, block = divmod(owner, problem.blocks)
            if first < end:
                place = (*divmod(row, problem.num_kv_heads), begins[block])
                found[place] = queries[first:end].tolist()
        assert found == expected


def test_feature_problems_of_selected_blocks_keep_what_decides_the_code():
    for problem in (PAPER, dataclasses.replace(PAPER, is_packed=True, batch=3, block_size=128)):
        small = features(problem)
        kept = ("block_size", "group_size", "head_dim", "dtype", "is_packed")
        for one in small:
            assert [getattr(one, name) for name in kept] == [getattr(problem, name) for name in kept]
        assert any(one.at_edges for one in small)
        assert problem.is_packed or any(one.at_edges and one.q_len == 1 for one in small)
        # Two key heads, and two sequences unless they are packed, whose indices are all drawn.
        drawn = [one for one in small if one.workload == RANDOM]
        assert drawn
        assert all(one.num_kv_heads == 2 and (one.batch == 2 or one.is_packed) for one in drawn)
        assert any(one.has_lse_gradient for one in small)
