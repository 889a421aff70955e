"""The contract of ``block_sparse_attention``: problems, patterns of masks, and what is counted."""

import dataclasses

import numpy as np
import pytest

from attn_tune.ops.block_sparse_attention.features import features, samples
from attn_tune.ops.block_sparse_attention.op import OP
from attn_tune.ops.block_sparse_attention.patterns import listed_pairs, pattern
from attn_tune.ops.block_sparse_attention.problem import Problem, flops
from attn_tune.schema.errors import UsageError

SIZES = {"batch": 2, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 16, "v_head_dim": 16}
LONG = Problem(**SIZES, q_len=4096, kv_len=4096, causal=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mask_block_q": 8}, "block_size=8 (bq) must be a power of two of at least 16"),
        ({"mask_block_k": 96}, "block_size=96 (bk) must be"),
        ({"block_dims": "nb"}, "blocks='nb' (block_dims) must be one of"),
        ({"bias_dims": "bnts"}, "block_sparse_attention has no bias"),
        ({"has_sinks": True}, "block_sparse_attention has no sinks"),
        ({"dropout_rate": 0.1}, "block_sparse_attention has no dropout"),
    ],
)
def test_an_impossible_problem_is_refused_by_name(change, words):
    with pytest.raises(UsageError) as refused:
        dataclasses.replace(LONG, **change)
    assert words in str(refused.value)


def test_signatures_of_all_samples_are_read_back_and_differ():
    texts = [problem.signature.text for problem in samples().values()]
    for text in texts:
        assert OP.from_signature(OP.parse_signature(text)).signature.text == text
    # Scale, edges and the gradient of the lse are in no signature.
    assert len(set(texts)) >= len(texts) - 4


def test_a_mask_of_one_head_has_one_signature():
    one = dataclasses.replace(LONG, num_q_heads=1, num_kv_heads=1, block_dims="1n")
    assert one.signature == dataclasses.replace(one, block_dims="11").signature


def test_patterns_have_their_density_and_documents_see_themselves_alone():
    masks = {
        workload: pattern(dataclasses.replace(LONG, workload=workload, q_len=32768, kv_len=32768))[0, 0]
        for workload in ("random", "documents", "local", "full")
    }
    assert 0.11 < masks["random"].mean() < 0.14
    assert masks["full"].all()
    documents = masks["documents"]
    np.testing.assert_array_equal(documents, documents.T)
    np.testing.assert_array_equal(documents @ documents > 0, documents)
    assert documents.sum(1).max() == 64
    for mask in masks.values():
        assert mask.diagonal().all()


def test_masks_at_the_edges_have_rows_with_none_one_and_all_and_a_key_block_that_no_row_lists():
    mask = pattern(samples()["edges"])
    counts = mask.sum(3)
    assert (counts[:, :, 0] == 0).all()
    assert (counts[:, :, 1] <= 1).all()
    assert (counts[:, :, -1] >= mask.shape[3] - 1).all()
    assert not mask[..., 1].any()


@pytest.mark.parametrize("name", ["of_both", "causal_window", "longer_keys", "longer_queries", "unequal_blocks"])
def test_listed_pairs_are_those_that_a_dense_mask_counts(name):
    problem = samples()[name]
    mask = pattern(problem).repeat(problem.mask_block_q, 2)[:, :, : problem.q_len]
    mask = mask.repeat(problem.mask_block_k, 3)[..., : problem.kv_len]
    left, right = problem.bounds
    ahead = np.arange(problem.kv_len)[None] - np.arange(problem.q_len)[:, None] - problem.offset
    seen = mask & (ahead <= (problem.kv_len if right is None else right))
    seen &= ahead >= (-problem.kv_len - problem.q_len if left is None else -left)
    whole = np.broadcast_to(seen, (problem.batch, problem.num_q_heads, problem.q_len, problem.kv_len))
    assert listed_pairs(problem) == whole.sum()
    assert flops(problem, "fwd") == 2 * whole.sum() * (problem.head_dim + problem.v_head_dim)


def test_feature_problems_keep_blocks_and_have_the_edges_of_masks():
    wide = dataclasses.replace(LONG, mask_block_q=512, mask_block_k=256, block_dims="1n")
    for problem in (LONG, wide):
        small = features(problem)
        assert sum(one.at_edges for one in small) >= 3
        assert any(one.has_lse_gradient for one in small)
        for one in small:
            kept = ("mask_block_q", "mask_block_k", "block_dims", "dtype", "workload")
            assert [getattr(one, name) for name in kept] == [getattr(problem, name) for name in kept]
        assert {one.q_len < one.kv_len for one in small} == {True, False}
        assert max(one.block_mask_shape[2] for one in small) > 1
