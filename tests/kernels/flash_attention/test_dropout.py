import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.kernels.flash_attention.dropout import keep_bits, keep_mask, mix, threshold


def scramble(x: int) -> int:
    """The finaliser in Python integers."""
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ x >> 16


def bits(seed: int, b: int, n: int, i: int, j: int) -> int:
    """The contract's five rounds in Python integers."""
    h = scramble((seed + 0x9E3779B9) % 2**32)
    h = scramble(h ^ b * 0x85EBCA6B % 2**32)
    h = scramble(h ^ n * 0xC2B2AE35 % 2**32)
    h = scramble((h + i) % 2**32)
    return scramble(h ^ j * 0x27D4EB2F % 2**32)


@pytest.mark.parametrize("x", [0, 1, 2**31, 2**32 - 1, 123456789])
def test_mix_matches_integer_arithmetic(x):
    assert int(mix(jnp.uint32(x))) == scramble(x)


@pytest.mark.parametrize(
    ("seed", "b", "n", "i", "j"),
    [(0, 0, 0, 0, 0), (7, 1, 2, 3, 4), (2**32 - 1, 255, 127, 131071, 131071)],
)
def test_bits_match_integer_arithmetic(seed, b, n, i, j):
    words = jnp.array([seed, 0, 0], jnp.uint32)
    assert int(keep_bits(words, batch=b, head=n, row=i, col=j)) == bits(seed, b, n, i, j)


def test_a_shard_drops_what_the_whole_drops():
    whole = jnp.array([42, 0, 0], jnp.uint32)
    shard = jnp.array([42, 5, 3], jnp.uint32)
    rows, cols = np.arange(8)[:, None], np.arange(8)
    expected = keep_bits(whole, batch=6, head=4, row=rows, col=cols)
    actual = keep_bits(shard, batch=1, head=1, row=rows, col=cols)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_kept_fraction_and_independence_of_neighbours(rate):
    words = jnp.array([3, 0, 0], jnp.uint32)
    kept = np.asarray(
        keep_mask(
            words,
            rate,
            batch=np.arange(2)[:, None, None, None],
            head=np.arange(4)[:, None, None],
            row=np.arange(128)[:, None],
            col=np.arange(128),
        )
    ).astype(float)
    deviation = np.sqrt(rate * (1 - rate))
    assert abs(kept.mean() - (1 - rate)) < 5 * deviation / np.sqrt(kept.size)
    for axis in range(kept.ndim):
        a = np.moveaxis(kept, axis, 0)
        covariance = np.mean((a[1:] - 1 + rate) * (a[:-1] - 1 + rate))
        assert abs(covariance) < 5 * deviation**2 / np.sqrt(a[1:].size), f"axis {axis}"


def test_threshold_stays_in_range():
    assert threshold(0.0) == 0
    assert threshold(0.5) == 2**31
    assert threshold(1 - 2**-40) == 2**32 - 1
