"""The contract of ``ragged_paged``: problems, sequences of each workload, poisoned inputs, and what is counted."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from attn_tune.ops.ragged_paged.features import features, samples
from attn_tune.ops.ragged_paged.inputs import make_inputs
from attn_tune.ops.ragged_paged.op import OP
from attn_tune.ops.ragged_paged.problem import WORKLOADS, Problem, bytes_moved, flops
from attn_tune.ops.ragged_paged.reference import reference
from attn_tune.schema.errors import UsageError
from tests.kernels.paged_decode.dense_numpy import tokens
from tests.kernels.ragged_paged.dense_numpy import assert_right

SMALL = Problem(batch=3, tokens=20, kv_len=37, num_q_heads=4, num_kv_heads=2, head_dim=16, v_head_dim=16, page_size=8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": 0}, "t=0 (tokens) must be a positive integer"),
        ({"num_q_heads": 5}, "n=5 (num_q_heads) must be a multiple of k=2"),
        ({"layout": "hdn"}, "layout='hdn' must be one of"),
        ({"kv_dtype": "int8"}, "kv=int8 needs scales"),
        ({"window": 3, "causal": False}, "left=3 (window) counts from a query's own position"),
        ({"window": -1}, "left=-1 (window) must be non-negative"),
        ({"soft_cap": 0.0}, "logits_soft_cap must be positive"),
        ({"q_scale": "head"}, "qscale='head' (q_scale) must be one of none, tensor, token"),
        ({"q_scale": "token"}, "qscale=token needs a cache of codes"),
    ],
)
def test_an_impossible_problem_is_refused_by_name(change, words):
    with pytest.raises(UsageError) as refused:
        dataclasses.replace(SMALL, **change)
    assert words in str(refused.value)


def test_signatures_of_all_samples_are_read_back():
    for problem in samples().values():
        assert OP.from_signature(OP.parse_signature(problem.signature.text)).signature == problem.signature


@pytest.mark.parametrize("workload", [w.name for w in WORKLOADS])
@pytest.mark.parametrize(("batch", "count"), [(1, 1), (3, 2), (16, 500), (16, 16), (9, 10000)])
def test_sequences_have_the_new_tokens_that_they_can(workload, batch, count):
    problem = dataclasses.replace(SMALL, batch=batch, tokens=count, workload=workload)
    new = [n for n, _ in problem.sequences]
    assert len(new) == batch
    assert all(0 <= n <= length <= 37 for n, length in problem.sequences)
    assert sum(new) <= count
    if workload == "eq":
        assert sum(new) == min(count, batch * 37)
    if workload == "mix" and count >= batch:
        assert new[: batch - max(1, batch // 8)] == [1] * (batch - max(1, batch // 8))


@pytest.mark.parametrize("name", ["paged_at_edges", "window_queries", "head_first", "mixed"])
def test_what_no_query_sees_is_poisoned_and_all_else_finite(name):
    problem = samples()[name]
    o = jax.jit(functools.partial(make_inputs, problem, "fwd"))(3)
    given, ends, table = (np.asarray(x) for x in (o.kv_lens, o.cu_q_lens, o.page_table))
    assert sorted(zip(np.diff(ends).tolist(), given.tolist(), strict=True)) == sorted(problem.given_sequences)
    lengths = np.clip(given, 0, problem.input_capacity)
    for row, length in enumerate(lengths):
        keys = tokens(np.asarray(o.k, np.float32), problem.layout, table, row)
        new = ends[row + 1] - ends[row]
        first = 0 if problem.window is None else max(0, length - new - problem.window)
        seen = np.zeros(len(keys), bool)
        seen[first if new else length : length] = True
        assert np.isfinite(keys[seen]).all()
        used = [i for i in range(table.shape[1]) if seen[i * problem.page_size : (i + 1) * problem.page_size].any()]
        assert (table[row][used] >= 0).all()
        owned = np.isin(np.arange(table.shape[1]), used).repeat(problem.page_size)
        assert np.isnan(keys[owned & ~seen]).all()
    assert np.isnan(np.asarray(o.q, np.float32)[ends[-1] :]).all()
    is_one = np.diff(ends) == 1
    if not problem.at_edges:
        assert is_one[: is_one.sum()].all()


NAMES = ("paged_at_edges", "contiguous_ragged", "everything", "interleaved", "uneven", "not_causal")


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_that_of_numpy(name):
    problem = samples()[name]
    operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(2)
    found = jax.jit(functools.partial(reference, problem, "fwd"))(operands)
    assert_right(dataclasses.replace(problem, dtype="float32"), operands, found)


def test_operations_and_bytes_are_those_of_the_sequences():
    for window, causal in ((None, True), (5, True), (0, True), (None, False)):
        problem = dataclasses.replace(SMALL, workload="exp", window=window, causal=causal)
        pairs = keys = 0
        for new, length in problem.sequences:
            seen = set()
            for position in range(length - new, length):
                stop = position + 1 if causal else length
                visible = [key for key in range(stop) if window is None or key >= position - window]
                pairs += len(visible)
                seen |= set(visible)
            keys += len(seen)
        assert flops(problem, "fwd") == 2 * 4 * pairs * 32
        assert bytes_moved(problem, "fwd") == keys * 2 * 32 * 2 + 20 * 4 * (32 * 2 + 4)


def test_feature_problems_hold_padding_and_every_kind_of_sequence():
    for problem in samples().values():
        small = features(problem)
        pairs = [pair for one in small for pair in one.given_sequences]
        assert {(0, 5), (0, 0), (4, 2), (1, 1), (1, 2**31 - 1), (2, -3)} <= set(pairs)
        assert any(new > 64 for new, _ in pairs)
        assert max(max(one.lengths) for one in small) > 256
        assert any(max(one.lengths) > one.kv_len for one in small)
        assert (1, 257) in small[0].sequences
        # As many queries as sequences, which are not one each.
        assert any(one.tokens == one.batch > 1 and {new for new, _ in one.sequences} != {1} for one in small)
        assert any(one.window is not None for one in small) or not problem.causal
        assert problem.layout == "latent" or any(one.num_kv_heads == 2 for one in small)
        assert any(sum(new for new, _ in one.sequences) < one.tokens for one in small)
        for one in small:
            kept = ("group_size", "head_dim", "layout", "dtype", "kv_dtype", "kv_scale", "page_size")
            assert [getattr(one, name) for name in kept] == [getattr(problem, name) for name in kept]
