"""Pools of states: each sequence's is read from its slot and written there, and nothing else of the pool changes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune.schema.errors import UnsupportedError, UsageError
from tests.chosen import chosen

OPS = ("gated_delta_rule", "kda", "gla", "linear_attention")
SLOTS, HEADS, WIDTH = 6, 4, 8


def call_of(op, rows, length, seed=0):
    """The op with random operands of this many rows and tokens, and a pool."""
    key = iter(jax.random.split(jax.random.key(seed), 6))
    q, k = (jax.random.normal(next(key), (rows, length, HEADS, WIDTH)) / WIDTH for _ in range(2))
    v = jax.random.normal(next(key), (rows, length, HEADS, WIDTH))
    channels = (WIDTH,) if op in ("kda", "gla") else ()
    g = -jax.random.uniform(next(key), (rows, length, HEADS, *channels))
    beta = (jax.random.uniform(next(key), (rows, length, HEADS)),) if op in ("gated_delta_rule", "kda") else ()
    pool = jax.random.normal(next(key), (SLOTS, HEADS, WIDTH, WIDTH))
    return functools.partial(getattr(attn_tune, op), q, k, v, g, *beta, return_state=True), pool


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("length", chosen([1, 5, 70], [1, 70]))  # three tokens are below
def test_slots_are_read_and_written_and_the_others_are_as_they_were(op, length):
    call, pool = call_of(op, 3, length)
    slots = jnp.array([4, 0, 3], jnp.int32)
    want, states = call(initial_state=pool[slots])
    out, found = call(initial_state=pool, slots=slots)
    np.testing.assert_allclose(out, want, atol=1e-6)
    np.testing.assert_allclose(found, pool.at[slots].set(states), atol=1e-6)
    np.testing.assert_array_equal(found[jnp.array([1, 2, 5])], pool[jnp.array([1, 2, 5])])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("none", [-1, SLOTS, 2**31 - 1])
def test_a_slot_that_the_pool_does_not_have_is_a_state_of_zeros_and_is_not_kept(op, none):
    call, pool = call_of(op, 2, 3)
    fresh = pool.at[2].set(0.0)
    want, states = call(initial_state=fresh[jnp.array([2, 5])])
    out, found = call(initial_state=pool, slots=jnp.array([none, 5], jnp.int32))
    np.testing.assert_allclose(out, want, atol=1e-6)
    np.testing.assert_allclose(found, pool.at[5].set(states[1]), atol=1e-6)


def test_packed_sequences_have_slots_and_those_without_a_token_keep_their_state():
    call, pool = call_of("gated_delta_rule", 1, 40)
    ends, slots = jnp.array([0, 17, 17, 37], jnp.int32), jnp.array([5, 1, 0], jnp.int32)
    want, states = call(initial_state=pool[slots], cu_seqlens=ends)
    out, found = jax.jit(lambda pool: call(initial_state=pool, cu_seqlens=ends, slots=slots))(pool)
    np.testing.assert_allclose(out, want, atol=1e-6)
    np.testing.assert_allclose(found, pool.at[slots].set(states), atol=1e-6)
    np.testing.assert_array_equal(found[1], pool[1])


@pytest.mark.parametrize("slots", [[4, -1], np.array([4, -7], np.int8), np.array([4, 2**32 + 1])])
def test_integers_of_any_kind_are_slots(slots):
    call, pool = call_of("gated_delta_rule", 2, 3)
    want, states = call(initial_state=pool, slots=jnp.array([4, -1], jnp.int32))
    out, found = call(initial_state=pool, slots=slots)
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(found, states)


def test_a_donated_pool_is_updated_in_place():
    call, pool = call_of("gated_delta_rule", 2, 1)
    step = jax.jit(lambda pool, slots: call(initial_state=pool, slots=slots), donate_argnums=0)
    compiled = step.lower(pool, jnp.array([3, 1], jnp.int32)).compile()
    assert "input_output_alias={ {1}: (0, {}" in compiled.as_text()
    copies = [line for line in compiled.as_text().splitlines() if f"f32[{SLOTS},{HEADS},{WIDTH},{WIDTH}]" in line]
    assert not [line for line in copies if " copy(" in line]


def test_steps_over_a_pool_are_one_call_of_all_tokens():
    call, pool = call_of("gated_delta_rule", 2, 6)
    slots = jnp.array([3, 1], jnp.int32)
    want, states = call(initial_state=pool, slots=slots)
    arrays, held, outs = call.args, pool, []
    for token in range(6):
        one = [x[:, token : token + 1] for x in arrays]
        out, held = attn_tune.gated_delta_rule(*one, return_state=True, initial_state=held, slots=slots)
        outs.append(out)
    np.testing.assert_allclose(jnp.concatenate(outs, 1), want, atol=1e-5)
    np.testing.assert_allclose(held, states, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"slots": jnp.zeros(3, jnp.int32)}, r"slots must be integers \[2\] beside the sequences, got int32\[3\]"),
        ({"slots": jnp.zeros(2)}, r"slots must be integers \[2\].* got float32\[2\]"),
        ({"return_state": False}, "give initial_state and return_state=True"),
        ({"initial_state": None}, "give initial_state and return_state=True"),
        (
            {"initial_state": jnp.zeros((SLOTS, HEADS, WIDTH, 9))},
            r"must be float32\[slots, 4, 8, 8\], at least one slot, got float32\[6, 4",
        ),
        (
            {"initial_state": jnp.zeros((0, HEADS, WIDTH, WIDTH))},
            r"must be float32\[slots, 4, 8, 8\], at least one slot, got float32\[0, 4",
        ),
    ],
)
def test_malformed_pools_are_refused_in_a_sentence(change, words):
    call, pool = call_of("gated_delta_rule", 2, 3)
    with pytest.raises(UsageError, match=words):
        call(**{"initial_state": pool, "slots": jnp.zeros(2, jnp.int32)} | change)


def test_a_pool_has_no_gradients():
    call, pool = call_of("gated_delta_rule", 2, 3)
    slots = jnp.array([3, 1], jnp.int32)
    with pytest.raises(UnsupportedError, match="slots= updates states in place; without it the op is differentiated"):
        jax.grad(lambda pool: call(initial_state=pool, slots=slots)[0].sum())(pool)
