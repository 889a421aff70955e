"""Arguments of calls over a cache: integers that int32 does not hold, and what is no array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune.ops.fields.cache_arguments import check_count, check_integers, check_window
from attn_tune.schema.errors import UsageError

LARGEST, LEAST = 2**31 - 1, -(2**31)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.array([2**32 + 3, -(2**40), 7]), [LARGEST, LEAST, 7]),
        (np.array([2**31 + 5, 1, 0], np.uint32), [LARGEST, 1, 0]),
        (jnp.array([2**31 + 5, 1, 0], jnp.uint32), [LARGEST, 1, 0]),
        (np.array([3, -4, 5], np.int16), [3, -4, 5]),
    ],
    ids=["int64", "uint32", "uint32_of_jax", "int16"],
)
def test_integers_beyond_int32_are_as_large_as_it_holds(given, expected):
    found = check_integers("kv_lens", given, (3,))
    assert found.dtype == jnp.int32
    assert found.tolist() == expected


def test_integers_of_the_64_bit_mode_are_saturated_too():
    with jax.enable_x64(True):
        assert check_integers("kv_lens", jnp.array([2**32 + 3]), (1,)).tolist() == [LARGEST]


@pytest.mark.parametrize("given", [2**40, np.int64(2**40), np.array(2**40)])
def test_a_large_number_of_sequences_is_all_of_them(given):
    assert int(check_count("num_seqs", given)) == LARGEST


def test_a_window_beyond_all_positions_hides_nothing():
    assert check_window(2**40) == LARGEST


@pytest.mark.parametrize("sinks", ["x", {}, 10**30])
def test_sinks_that_are_no_array_are_named(sinks):
    q, cache = jnp.zeros((1, 2, 8)), jnp.zeros((1, 4, 2, 8))
    with pytest.raises(UsageError, match="softmax_aux must be an array"):
        attn_tune.paged_decode(q, cache, cache, [1], softmax_aux=sinks)


def test_nested_lists_are_queries():
    q, cache = jnp.ones((1, 2, 8)), jnp.ones((1, 4, 2, 8))
    assert attn_tune.paged_decode(q.tolist(), cache, cache, [3]).shape == (1, 2, 8)


def test_calls_that_are_not_causal_run_in_the_64_bit_mode():
    with jax.enable_x64(True):
        q, cache = jnp.ones((2, 2, 8), jnp.float32), jnp.ones((2, 4, 2, 8), jnp.float32)
        ends, lengths = jnp.array([0, 1, 2], jnp.int32), jnp.array([3, 4], jnp.int32)
        found = attn_tune.ragged_paged(q, cache, cache, lengths, ends, causal=False)
    assert np.allclose(found, 1)
