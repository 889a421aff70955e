"""Feature problems of linear attention and their inputs try what is rare in others."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from attn_tune.ops.gated_delta_rule.samples import samples
from attn_tune.ops.recurrent.features import LONG, features
from attn_tune.ops.recurrent.inputs import make_inputs

PLAIN, RAGGED, POOL, RAGGED_POOL = (samples()[name] for name in ("plain", "ragged", "pool", "pool_ragged"))


def inputs_of(problem, seed=1009):
    return jax.jit(functools.partial(make_inputs, problem, "fwd"))(seed)


@pytest.mark.parametrize("problem", [PLAIN, RAGGED], ids=["dense", "ragged"])
def test_another_scale_is_tried_with_many_tokens_and_with_one(problem):
    usual = problem.head_dim**-0.5
    assert {1, LONG} <= {one.length for one in features(problem) if one.scale not in (usual, 1.0)}
    assert any(one.scale == usual for one in features(problem))


def test_several_key_heads_are_tried_for_a_problem_with_one():
    lone = dataclasses.replace(PLAIN, num_key_heads=1, num_value_heads=4)
    assert {(one.num_key_heads, one.group_size) for one in features(lone)} == {(1, 4), (2, 4)}


def test_a_token_for_each_of_several_sequences_is_tried():
    assert any(one.length == 1 and one.batch > 2 and one.at_edges for one in features(PLAIN))
    assert any(set(one.lengths) == {1} and one.batch > 2 for one in features(RAGGED))


def test_queries_and_keys_at_the_edges_are_not_normalised():
    for problem in features(PLAIN):
        operands = inputs_of(problem)
        queries, keys = (np.linalg.norm(np.float32(x), axis=-1)[..., 0] for x in (operands.q, operands.k))
        for lengths in (queries, keys):
            assert (np.ptp(lengths) > 0.3) == problem.at_edges
        # The delta rule lets a state grow with longer keys.
        assert keys.max() < 1.01


def test_sequences_of_one_token_have_different_gates_at_the_edges():
    (problem,) = (one for one in features(PLAIN) if one.length == 1 and one.at_edges)
    assert len(set(inputs_of(problem).g[:, 0, 0].tolist())) == problem.batch


@pytest.mark.parametrize("problem", [PLAIN, RAGGED], ids=["dense", "ragged"])
def test_many_tokens_of_one_chunk_have_one_key_and_strengths_up_to_one(problem):
    problem = features(problem)[0]
    operands = inputs_of(problem)
    keys = np.float32(operands.k)[0, :, 0]
    keys = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
    # Of a ragged call a chunk is one of the last sequence.
    begin = int(operands.cu_seqlens[-2]) if problem.ragged else 128
    chunk = slice(begin, begin + 64)
    alike = keys[chunk] @ keys[chunk][32] > 0.99
    assert alike.sum() >= 40
    assert operands.beta[0, chunk][alike].max() <= 1


def test_sequences_without_a_token_stand_first_and_last_and_others_begin_late():
    edges = [one for one in features(RAGGED) if one.at_edges]
    lengths = [one.lengths for one in edges]
    assert any(one[0] == 0 for one in lengths)
    assert any(one[-1] == 0 for one in lengths)
    assert all(int(inputs_of(one).cu_seqlens[0]) > 0 for one in edges)
    # More than any tile, so that the end of the last sequence's tile is not that of the tokens.
    assert max(one.length - sum(one.lengths) for one in edges) > 128 + 2


@pytest.mark.parametrize("problem", [POOL, RAGGED_POOL], ids=["dense", "ragged"])
def test_slots_below_a_pool_and_beyond_it_are_tried(problem):
    for one in (one for one in features(problem) if one.at_edges):
        slots, count = inputs_of(one).slots.tolist(), one.state_shape[0]
        assert {-1, count} < set(slots)
        assert any(slot < -1 for slot in slots)
        assert any(0 <= slot < count for slot in slots)
        if one.length == LONG:
            assert all(one.lengths[i] for i, slot in enumerate(slots) if not 0 <= slot < count)


@pytest.mark.parametrize("problem", [POOL, RAGGED_POOL], ids=["dense", "ragged"])
def test_slots_of_no_sequence_hold_nan(problem):
    for one in features(problem):
        operands = inputs_of(one)
        is_free = ~np.isin(np.arange(one.state_shape[0]), operands.slots)
        assert is_free.any()
        assert (np.isnan(operands.initial_state).all((1, 2, 3)) == is_free).all()
        assert np.isfinite(operands.initial_state[~is_free]).all()


def test_half_of_the_heads_remember_the_first_of_thousands_of_tokens():
    problem = dataclasses.replace(PLAIN, batch=1, length=4096)
    operands = inputs_of(problem)
    # What the delta rule replaces under one key among ``head_dim``, and what gates leave.
    replaced = operands.beta.mean((0, 1)) * problem.length / problem.head_dim
    kept = np.exp(operands.g.sum((0, 1)))
    assert (kept[1::2] > 0.3).all()
    assert (replaced[1::2] < 2).all()
    assert (replaced[::2] > 10).all()
