"""Feature problems of linear attention and their inputs try what is rare in others."""

import dataclasses
import functools

import jax
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
