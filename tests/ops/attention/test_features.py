"""Feature problems of dense attention and their inputs try what is rare in others."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from attn_tune.ops.attention.features import features, samples
from attn_tune.ops.attention.inputs import make_inputs
from attn_tune.ops.attention.problem import Problem


def inputs_of(problem, seed=1009):
    return jax.jit(functools.partial(make_inputs, problem, "fwd"))(seed)


def test_values_that_no_signature_says_are_other_than_usual_in_one_problem():
    problem = Problem.from_signature(samples()["everything"].signature)
    for name in ("scale", "soft_cap", "dropout_rate"):
        assert len({getattr(one, name) for one in features(problem)}) == 2
    plain = Problem.from_signature(samples()["plain"].signature)
    assert {(one.soft_cap, one.dropout_rate) for one in features(plain)} == {(None, 0.0)}


@pytest.mark.parametrize("dims", ["bnts", "b11s", "11ts", "111s"])
def test_a_mask_hides_a_whole_row_but_not_its_only_one(dims):
    problem = dataclasses.replace(samples()["plain"], mask_dims=dims)
    hidden = [~np.asarray(inputs_of(problem, seed).mask).any(-1) for seed in range(4)]
    assert all(one.any() == (dims != "111s") and not one.all() for one in hidden)


def test_some_biases_of_odd_seeds_are_large_and_of_both_signs():
    problem = dataclasses.replace(samples()["plain"], bias_dims="bnts")
    odd, even = (np.asarray(inputs_of(problem, seed).bias) for seed in (1009, 1008))
    # Where float32 overflows in an exponential.
    assert odd.max() > 89
    assert odd.min() < -89
    assert np.abs(even).max() < 10
    assert np.median(np.abs(odd)) < 1


def test_feature_problems_hold_more_than_one_tile_and_one_query_of_another_scale():
    problem = next(iter(samples().values()))
    small = features(problem)
    assert max(one.kv_len for one in small) > 256
    assert all(one.scale != problem.scale for one in small if one.q_len == 1)
