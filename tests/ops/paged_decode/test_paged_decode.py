"""The contract of ``paged_decode``: problems, layouts, poisoned inputs, the reference, and what is counted."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from attn_tune.ops.fields.cache import LAYOUTS, axes, shape, sizes_of, steps
from attn_tune.ops.paged_decode.features import features, samples
from attn_tune.ops.paged_decode.inputs import make_inputs
from attn_tune.ops.paged_decode.op import OP
from attn_tune.ops.paged_decode.problem import Problem, bytes_moved, flops
from attn_tune.ops.paged_decode.reference import reference
from attn_tune.schema.errors import UsageError
from tests.kernels.paged_decode.dense_numpy import assert_right, tokens

SMALL = Problem(batch=3, q_len=2, kv_len=37, num_q_heads=4, num_kv_heads=2, head_dim=16, v_head_dim=16, page_size=8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 0}, "b=0 (batch) must be a positive integer"),
        ({"q_len": 9}, "t=9 (q_len) is above 8"),
        ({"num_q_heads": 5}, "n=5 (num_q_heads) must be a multiple of k=2"),
        ({"page_size": -1}, "page=-1"),
        ({"layout": "hdn"}, "layout='hdn' must be one of"),
        ({"kv_dtype": "int4"}, "kv='int4' (kv_dtype) must be one of"),
        ({"kv_scale": "head"}, "needs a cache of codes"),
        ({"kv_dtype": "int8"}, "kv=int8 needs scales"),
        ({"layout": "interleaved", "v_head_dim": 8}, "one width, got h=16 and v=8"),
        ({"layout": "latent", "v_head_dim": 24, "num_kv_heads": 1}, "values within keys, got h=16 below v=24"),
        ({"layout": "latent"}, "one key head for all query heads, got k=2"),
        ({"window": -1}, "left=-1 (window) must be non-negative"),
        ({"soft_cap": 0.0}, "logits_soft_cap must be positive"),
    ],
)
def test_an_impossible_problem_is_refused_by_name(change, words):
    with pytest.raises(UsageError) as refused:
        dataclasses.replace(SMALL, **change)
    assert words in str(refused.value)


def test_signatures_of_all_samples_are_read_back():
    for problem in samples().values():
        again = OP.from_signature(OP.parse_signature(problem.signature.text))
        assert again.signature == problem.signature


def test_a_window_that_hides_nothing_is_none():
    assert dataclasses.replace(SMALL, window=36).signature == SMALL.signature
    assert dataclasses.replace(SMALL, window=35).signature != SMALL.signature


@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_lead_to_the_element(layout):
    sizes = (5, 4, 3, 8)
    cache = np.arange(np.prod(shape(layout, *sizes))).reshape(shape(layout, *sizes))
    step = steps(layout, *sizes)
    head = 2 if layout == "interleaved" else 1
    place = {"page": 3, "slot": 2, "head": head * 2}
    index = tuple(place[axis] for axis in axes(layout))
    assert cache[index][0] == 3 * step.page + 2 * step.slot + 2 * step.head
    assert sizes_of(layout, cache.shape) == {"page": 5, "slot": 4, "head": 3}


@pytest.mark.parametrize("name", ["paged_at_edges", "window_queries", "head_first", "contiguous_ragged", "latent"])
def test_what_no_query_sees_is_poisoned_and_all_else_finite(name):
    problem = samples()[name]
    operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(3)
    given = np.asarray(operands.kv_lens)
    assert sorted(given) == sorted(problem.given_lengths)
    lengths = np.clip(given, 0, problem.input_capacity)
    assert sorted(lengths) == sorted(problem.lengths)
    table = None if operands.page_table is None else np.asarray(operands.page_table)
    for row, length in enumerate(lengths):
        keys = tokens(np.asarray(operands.k, np.float32), problem.layout, table, row)
        first = 0 if problem.window is None else max(0, length - problem.q_len - problem.window)
        seen = np.zeros(len(keys), bool)
        seen[first:length] = True
        assert np.isfinite(keys[seen]).all()
        if table is None:
            assert np.isnan(keys[~seen]).all()
        else:
            used = [i for i in range(table.shape[1]) if seen[i * problem.page_size : (i + 1) * problem.page_size].any()]
            assert (table[row][used] >= 0).all()
            assert len(used) == table.shape[1] or {-1, 2**31 - 1} & set(np.delete(table[row], used).tolist())
            owned = np.isin(np.arange(table.shape[1]), used).repeat(problem.page_size)
            assert np.isnan(keys[owned & ~seen]).all()


def test_sequences_at_the_edges_share_a_page_and_a_lone_key_outweighs_any_start_of_the_maximum():
    problem = dataclasses.replace(samples()["paged_at_edges"], has_sinks=True, num_q_heads=64)
    o = jax.jit(functools.partial(make_inputs, problem, "fwd"))(1)
    lengths, table = np.clip(np.asarray(o.kv_lens), 0, problem.input_capacity), np.asarray(o.page_table)
    first = table[lengths >= problem.page_size, 0]
    assert len(set(first.tolist())) == len(first) - 1
    (alone,) = np.flatnonzero(lengths == 1)
    key = np.asarray(o.k, np.float32)[table[alone, 0], 0]
    logits = problem.scale * np.einsum("knh,kh->kn", np.asarray(o.q, np.float32)[alone, 0].reshape(2, -1, 32), key)
    assert logits.min() < -88
    assert np.isneginf(np.asarray(o.sinks)[0])


@pytest.mark.parametrize("name", ["paged_at_edges", "everything", "interleaved", "latent_everything"])
def test_the_reference_is_that_of_numpy(name):
    problem = samples()[name]
    operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(2)
    found = jax.jit(functools.partial(reference, problem, "fwd"))(operands)
    assert_right(dataclasses.replace(problem, dtype="float32"), operands, found)


def test_operations_and_bytes_are_those_of_the_lengths():
    problem = dataclasses.replace(SMALL, workload="uni", window=5)
    pairs = keys = 0
    for length in problem.lengths:
        seen = set()
        for position in range(max(0, length - 2), length):
            visible = [key for key in range(length) if position - 5 <= key <= position]
            pairs += len(visible)
            seen |= set(visible)
        keys += len(seen)
    assert flops(problem, "fwd") == 2 * 4 * pairs * 32
    assert bytes_moved(problem, "fwd") == keys * 2 * 32 * 2 + 3 * 2 * 4 * (32 * 2 + 4)


def test_a_latent_is_read_once_and_has_two_products():
    latent = dataclasses.replace(SMALL, layout="latent", num_kv_heads=1, head_dim=48, v_head_dim=32)
    assert bytes_moved(latent, "fwd") == sum(latent.lengths) * 48 * 2 + 3 * 2 * 4 * ((48 + 32) * 2 + 4)
    pairs = sum(length + length - 1 for length in latent.lengths)
    assert flops(latent, "fwd") == 2 * 4 * pairs * (48 + 32)


def test_feature_problems_hold_empty_short_and_ragged_sequences():
    for problem in samples().values():
        small = features(problem)
        lengths = [set(one.given_lengths) for one in small]
        assert {0, 1, -3, 2**31 - 1} <= set().union(*lengths)
        assert max(max(one.lengths) for one in small) > 256
        # Ends next to those of tiles, of the sequence and of the keys before its first query's window.
        before = 0 if problem.window is None else small[0].window
        assert {257, min(257 + before, small[0].kv_len)} <= set(small[0].lengths)
        # Longer than expected, in a cache of more pages than that would need.
        assert any(max(one.lengths) > one.kv_len for one in small)
        assert all(one.input_capacity >= one.kv_len + one.page_size for one in small if one.at_edges)
        # A window that no signature says bites there all the same, and a row of one key head is proven with two.
        assert any(one.window is not None and one.window <= max(one.lengths) - 2 for one in small)
        assert problem.layout == "latent" or any(one.num_kv_heads == 2 for one in small)
        for one in small:
            kept = ("q_len", "group_size", "head_dim", "layout", "dtype", "kv_dtype", "kv_scale", "page_size")
            assert [getattr(one, name) for name in kept] == [getattr(problem, name) for name in kept]
