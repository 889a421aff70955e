"""Arguments of calls over a cache: integers that int32 does not hold, and what is no array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune.ops.fields.cache_arguments import (
    check_count,
    check_ends,
    check_factors,
    check_integers,
    check_window,
    remedy,
)
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


def test_a_cache_that_must_be_whole_says_how_each_device_may_have_its_own():
    assert remedy("nhd", cuts_sequences=False).endswith("or call it in jax.shard_map, each device with its own")
    assert "shard heads or sequences instead" in remedy("nhd", cuts_sequences=True)


def check_queries(given, shape, **options):
    return check_ends("cu_q_lens", given, shape, most=(8, "queries"), **options)


@pytest.mark.parametrize(
    "given", [[0, 5, 3, 8], np.asarray([0, 5, 3, 8]), (0, 5, 3, 8)], ids=["list", "numpy", "tuple"]
)
def test_ends_that_decrease_are_refused_where_the_host_holds_them(given):
    with pytest.raises(UsageError, match="cu_q_lens must not decrease, got 3 after 5"):
        check_queries(given, (4,))
    # The rest of what a static shape holds may be anything.
    check_queries(given, (4,), num_seqs=1)
    with pytest.raises(UsageError, match="cu_q_lens must not decrease, got 3 after 5"):
        check_queries(given, (4,), num_seqs=np.int64(2))
    check_queries(given, (4,), num_seqs=jnp.asarray(3))
    check_queries(jnp.asarray(given), (4,))
    check_queries(np.sort(given), (4,))


def test_ends_that_begin_late_are_refused_where_the_host_holds_them_and_they_must_not():
    check_queries([2, 5, 8], (3,), from_zero=False)
    with pytest.raises(UsageError, match="cu_q_lens must not begin before 0, got -2"):
        check_queries([-2, 5, 8], (3,), from_zero=False)
    with pytest.raises(UsageError, match="cu_q_lens must begin with 0, got 2: queries before it"):
        check_queries([2, 5, 8], (3,))


@pytest.mark.parametrize("given", [[0, 5, 9], np.asarray([0, 5, 2**40])], ids=["list", "numpy"])
def test_ends_behind_all_that_there_is_are_refused_where_the_host_holds_them(given):
    with pytest.raises(UsageError, match=f"cu_q_lens ends at {given[-1]}, but there are 8 queries"):
        check_queries(given, (3,))
    check_queries(given, (3,), num_seqs=1)
    check_queries(jnp.asarray([0, 5, 9]), (3,))
    check_queries([0, 5, 5], (3,))


@pytest.mark.parametrize("count", [1, np.int64(1), np.array(1), np.array([1]), [1], np.array([[1]])])
def test_what_lies_behind_the_sequences_that_count_may_be_anything(count):
    check_queries([0, 8, 99], (3,), num_seqs=count)
    check_queries([0, 8, -1], (3,), num_seqs=count)


@pytest.mark.parametrize("count", [2.0, True, np.array([1, 2]), [[1], [2, 3]], "2"])
def test_a_number_of_sequences_that_is_none_is_the_argument_named(count):
    arrays = (jnp.zeros((8, 2, 8)), jnp.zeros((8, 2, 8)), CACHE, CACHE, LENGTHS, TABLE)
    with pytest.raises(UsageError, match=r"num_seqs must be an (integer|array)"):
        attn_tune.paged_append(*arrays, cu_q_lens=np.asarray([0, 8, 99]), num_seqs=count)


CACHE, TABLE, LENGTHS = jnp.zeros((4, 4, 2, 8)), np.asarray([[0, 1], [2, 3]]), np.asarray([3, 3])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda ends: attn_tune.ragged_paged(jnp.zeros((8, 2, 8)), CACHE, CACHE, LENGTHS, ends, TABLE), "queries"),
        (
            lambda ends: attn_tune.paged_append(
                jnp.zeros((8, 2, 8)), jnp.zeros((8, 2, 8)), CACHE, CACHE, LENGTHS, TABLE, cu_q_lens=ends
            ),
            "new tokens",
        ),
        (
            lambda ends: attn_tune.cascade_attention(
                jnp.zeros((8, 2, 8)),
                CACHE,
                CACHE,
                LENGTHS,
                TABLE,
                attn_tune.SharedPrefix(TABLE[:1], LENGTHS[:1]),
                cu_q_lens=ends,
            ),
            "queries",
        ),
    ],
    ids=["ragged_paged", "paged_append", "cascade_attention"],
)
def test_all_calls_over_a_cache_take_the_same_ends(call, words):
    call(np.asarray([0, 5, 8]))
    with pytest.raises(UsageError, match="cu_q_lens must begin with 0, got 2"):
        call(np.asarray([2, 5, 8]))
    with pytest.raises(UsageError, match=f"cu_q_lens ends at 9, but there are 8 {words}"):
        call(np.asarray([0, 5, 9]))


@pytest.mark.parametrize(
    ("ends", "words"),
    [([1, 2, 2], "cu_seqs must begin with 0, got 1"), ([0, 2, 5], "ends at 5, but there are 2 sequences")],
)
def test_groups_that_share_prefixes_hold_the_sequences_that_there_are(ends, words):
    prefix = attn_tune.SharedPrefix(TABLE, LENGTHS, np.asarray(ends))
    with pytest.raises(UsageError, match=words):
        attn_tune.cascade_attention(jnp.zeros((2, 2, 8)), CACHE, CACHE, LENGTHS, TABLE, prefix)


def test_ends_of_which_one_is_traced_are_not_looked_at():
    def call(n):
        return check_queries([0, n, 16], (3,)), check_factors("k_scale", [n, 1.0])

    np.testing.assert_array_equal(jax.jit(call)(4)[0], [0, 4, 16])


def test_sequences_of_ops_without_a_cache_do_not_decrease_either():
    x, ends = jnp.zeros((1, 64, 1, 64), jnp.bfloat16), np.asarray([0, 40, 10, 64])
    with pytest.raises(UsageError, match="cu_seqlens must not decrease, got 10 after 40"):
        attn_tune.linear_attention(x, x, x, cu_seqlens=ends)
    with pytest.raises(UsageError, match="cu_seqlens must not decrease, got 10 after 40"):
        attn_tune.mean_pooling(x, block_size=16, cu_seqlens=ends)


@pytest.mark.parametrize("given", [1e39, np.float64(1e-60), -1.0, float("nan")])
def test_factors_that_float32_cannot_hold_are_refused(given):
    with pytest.raises(UsageError, match="v_scale must be positive and finite in float32"):
        check_factors("v_scale", given)


def test_a_window_beyond_all_positions_hides_nothing():
    assert check_window(2**40) is None
    assert check_window(2**30 - 1) == 2**30 - 1


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
