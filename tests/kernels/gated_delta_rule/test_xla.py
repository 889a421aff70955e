"""The XLA kernel: its tiles, its equations, and its outputs against numpy. Gradients are tried with the public call."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.kernels.gated_delta_rule.xla import SPEC
from attn_tune.kernels.lang.xla.linear.config import (
    DeltaBackwardConfig as BackwardConfig,
    DeltaForwardConfig as ForwardConfig,
)
from attn_tune.kernels.lang.xla.linear.forward import forward
from attn_tune.kernels.lang.xla.linear.products import inverse
from attn_tune.kernels.lang.xla.linear.tiles import Tiling
from attn_tune.ops.gated_delta_rule.problem import Problem
from attn_tune.ops.gated_delta_rule.samples import samples
from attn_tune.ops.recurrent.inputs import make_inputs
from tests.chosen import chosen
from tests.ops.cases import CPU, H200
from tests.ops.recurrent.recurrence_numpy import recurrence

PLAIN = ForwardConfig(chunk=16)
CONFIGS = {
    "token by token": ForwardConfig(chunk=1),
    "short tiles": ForwardConfig(chunk=8, tiles=4),
    "substitution": ForwardConfig(chunk=32, solve="substitution"),
    "one tile": ForwardConfig(chunk=256),
}


@functools.cache
def case(name):
    problem = dataclasses.replace(samples()[name], dtype="float32")
    return problem, jax.jit(functools.partial(make_inputs, problem, "fwd"))(1)


def assert_right(problem, operands, config, atol=3e-6):
    found = jax.jit(functools.partial(forward, problem, config))(operands)
    out, state = recurrence(problem, operands)
    np.testing.assert_allclose(found["out"], out, atol=atol)
    assert ("state" in found) == problem.has_final_state
    if problem.has_final_state:
        np.testing.assert_allclose(found["state"], state, atol=3 * atol)


@pytest.mark.parametrize(
    "name",
    chosen(
        ["neither", "odd_dims", "one_key_head", "one_token_at_edges", "ragged_tokens"],
        ["odd_dims", "one_token_at_edges", "ragged_tokens"],
    ),
)
def test_samples_are_right(name):
    assert_right(*case(name), PLAIN)


@pytest.mark.parametrize("name", chosen(CONFIGS, ["token by token", "substitution"]))
def test_every_way_to_cut_packed_sequences_is_right(name):
    assert_right(*case("ragged_states"), CONFIGS[name])


def test_products_in_the_dtype_of_the_call_are_as_right_as_that():
    problem = samples()["states"]
    operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(1)
    exact, _ = recurrence(problem, operands)
    errors = {}
    for products in ("float32", "working"):
        config = ForwardConfig(chunk=32, products=products)
        found = jax.jit(functools.partial(forward, problem, config))(operands)
        errors[products] = np.linalg.norm(np.asarray(found["out"], np.float64) - exact) / np.linalg.norm(exact)
    assert errors["float32"] < 2e-3
    assert errors["float32"] < errors["working"] < 1e-2


@pytest.mark.parametrize("solve", ["substitution", "doubling"])
@pytest.mark.parametrize("size", [8, 128])
def test_equations_of_equal_keys_are_solved_and_have_gradients(solve, size):
    # Powers of this matrix have entries above 1e30; its inverse has -1, 0 and 1 alone.
    lower = jnp.tril(jnp.ones((2, size, size)), -1)
    exact = np.eye(size) - np.eye(size, k=-1)
    np.testing.assert_allclose(inverse(solve, lower), np.broadcast_to(exact, lower.shape), atol=1e-6)
    weights = jax.random.normal(jax.random.key(0), lower.shape)
    found = jax.grad(lambda x: jnp.sum(weights * inverse(solve, x)))(lower)
    slopes = np.tril(-exact.T @ np.asarray(weights, np.float64) @ exact.T, -1)
    np.testing.assert_allclose(found, slopes, atol=1e-4)


def test_tiles_hold_each_token_of_a_sequence_once_and_no_two_sequences():
    lengths = (5, 0, 1, 16, 9, 0)
    problem = Problem(batch=6, length=40, num_value_heads=1, num_key_heads=1, head_dim=1, v_head_dim=1, ragged=True)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    places = Tiling(problem, 8, 2).places(jnp.asarray(ends, jnp.int32))
    rows, tokens = (np.asarray(x).reshape(-1, 8) for x in (places.rows, places.is_token))
    assert sorted(rows[tokens].tolist()) == list(range(31))
    assert len(set(rows.reshape(-1).tolist())) == rows.size
    sequence, first, last = (np.asarray(x).reshape(-1) for x in (places.sequence, places.is_first, places.is_last))
    owner = np.repeat(range(6), lengths)
    for row, used, own in zip(rows, tokens, sequence, strict=True):
        assert set(owner[row[used]]) <= {own}
    assert sequence[first].tolist() == sequence[last].tolist() == [0, 2, 3, 4]


def test_there_are_never_more_tiles_than_are_counted():
    for lengths in ((1,) * 40, (40,), (9, 9, 9, 9, 4), (0, 39, 1)):
        problem = Problem(
            batch=len(lengths), length=40, num_value_heads=1, num_key_heads=1, head_dim=1, v_head_dim=1, ragged=True
        )
        assert sum(-(-n // 8) for n in lengths) <= Tiling(problem, 8, 1).count


def test_untuned_one_token_is_taken_by_itself_and_more_in_tiles():
    problem = Problem(batch=4, length=1, num_value_heads=4, num_key_heads=2, head_dim=128, v_head_dim=128)
    untuned = {
        (device.platform, length): SPEC.searches["fwd"].heuristic(dataclasses.replace(problem, length=length), device)
        for device in (CPU, H200)
        for length in (1, 8, 4096)
    }
    assert {key: config.chunk for key, config in untuned.items()} == {
        ("cpu", 1): 1, ("cpu", 8): 8, ("cpu", 4096): 32, ("cuda", 1): 1, ("cuda", 8): 8, ("cuda", 4096): 64,
    }  # fmt: skip
    assert untuned["cuda", 4096].products == "working"
    assert untuned["cpu", 4096].products == "float32"


def test_a_config_of_a_near_problem_has_no_tiles_without_tokens():
    tuned = Problem(batch=1, length=2048, num_value_heads=4, num_key_heads=2, head_dim=128, v_head_dim=128)
    adapt = SPEC.searches["fwd"].adapt
    near, config = dataclasses.replace(tuned, length=1000), ForwardConfig(chunk=128, tiles=16)
    assert adapt(tuned, near, H200, config) == dataclasses.replace(config, tiles=4)
    assert adapt(tuned, tuned, H200, config) == config


def test_what_does_not_fit_is_refused_by_its_size():
    problem = Problem(batch=64, length=4096, num_value_heads=64, num_key_heads=64, head_dim=128, v_head_dim=128)
    infeasible = SPEC.searches["bwd"].infeasible
    assert "a step takes" in infeasible(problem, CPU, BackwardConfig(chunk=128, tiles=16))
    assert "states take" in infeasible(problem, CPU, BackwardConfig(chunk=16))
    assert infeasible(problem, CPU, SPEC.searches["bwd"].heuristic(problem, CPU)) is None
