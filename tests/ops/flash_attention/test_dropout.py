import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.ops.flash_attention.dropout import (
    COLUMN_FACTOR,
    FACTOR,
    ROW_FACTOR,
    keep_bits,
    keep_mask,
    mix,
    threshold,
)

RATES = (0.1, 0.5, 0.9)
# The last multipliers of the four weights that share a hash: [row bit 3, column bit 3], row by row.
LAST = tuple(FACTOR * r * c % 2**32 for r in (1, ROW_FACTOR) for c in (1, COLUMN_FACTOR))


def scramble(x: int) -> int:
    """The finaliser in Python integers."""
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ x >> 16


def bits(seed: int, b: int, n: int, i: int, j: int) -> int:
    """The contract's rounds in Python integers."""
    h = scramble((seed + 0x9E3779B9) % 2**32)
    h = scramble(h ^ b * 0x85EBCA6B % 2**32)
    h = scramble(h ^ n * 0xC2B2AE35 % 2**32)
    below, right = i >> 3 & 1, j >> 3 & 1
    x = scramble((h + i - 8 * below) % 2**32) ^ (j - 8 * right) * 0x27D4EB2F % 2**32
    x = (x ^ x >> 16) * 0x7FEB352D % 2**32
    last = ((0x846CA68B, 0x4ED27881), (0xEF097A51, 0x4F690B93))[below][right]
    return (x ^ x >> 15) * last % 2**32


def sample(words=(3, 0, 0), *, batch=0, head=0, row=0, col=0):
    """The bits as uint32 numpy; indices broadcast."""
    return np.asarray(keep_bits(jnp.array(words, jnp.uint32), batch=batch, head=head, row=row, col=col))


def correlation(a, b, rate):
    """Of the decisions at two sets of weights, in standard deviations of what independent ones would show."""
    a, b = (x >= np.uint32(threshold(rate)) for x in (a, b))
    covariance = np.mean((a - (1 - rate)) * (b - (1 - rate)))
    return covariance / (rate * (1 - rate)) * math.sqrt(a.size)


@pytest.mark.parametrize("x", [0, 1, 2**31, 2**32 - 1, 123456789])
def test_mix_matches_integer_arithmetic(x):
    assert int(mix(jnp.uint32(x))) == scramble(x)


@pytest.mark.parametrize(
    ("seed", "b", "n", "i", "j"),
    [
        (0, 0, 0, 0, 0),
        (7, 1, 2, 3, 4),
        (7, 1, 2, 11, 4),
        (7, 1, 2, 3, 12),
        (7, 1, 2, 27, 44),
        (2**32 - 1, 255, 127, 131071, 131071),
    ],
)
def test_bits_match_integer_arithmetic(seed, b, n, i, j):
    words = jnp.array([seed, 0, 0], jnp.uint32)
    assert int(keep_bits(words, batch=b, head=n, row=i, col=j)) == bits(seed, b, n, i, j)


def test_a_shard_drops_what_the_whole_drops():
    whole = jnp.array([42, 0, 0], jnp.uint32)
    shard = jnp.array([42, 5, 3], jnp.uint32)
    rows, cols = np.arange(20)[:, None], np.arange(20)
    expected = keep_bits(whole, batch=6, head=4, row=rows, col=cols)
    actual = keep_bits(shard, batch=1, head=1, row=rows, col=cols)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("rate", RATES)
def test_kept_fraction_and_independence_of_neighbours(rate):
    words = jnp.array([3, 0, 0], jnp.uint32)
    kept = np.asarray(
        keep_mask(
            words,
            rate,
            batch=np.arange(2)[:, None, None, None],
            head=np.arange(4)[:, None, None],
            row=np.arange(256)[:, None],
            col=np.arange(256),
        )
    ).astype(float)
    deviation = np.sqrt(rate * (1 - rate))
    assert abs(kept.mean() - (1 - rate)) < 5 * deviation / np.sqrt(kept.size)
    for axis, step in itertools.product(range(kept.ndim), (1, 2, 4, 8, 16, 24, 32)):
        a = np.moveaxis(kept, axis, 0)
        if step < len(a):
            covariance = np.mean((a[step:] - 1 + rate) * (a[:-step] - 1 + rate))
            bound = 5 * deviation**2 / np.sqrt(a[step:].size)
            assert abs(covariance) < bound, f"axis {axis}, step {step}"


@pytest.mark.parametrize("rate", RATES)
def test_the_four_weights_of_a_hash_are_independent(rate):
    rows = np.arange(1024).reshape(-1, 2, 8)[:, 0].reshape(-1, 1)
    cols = np.arange(4096).reshape(-1, 2, 8)[:, 0].reshape(-1)
    four = np.stack([sample(row=rows + r, col=cols + c).ravel() for r in (0, 8) for c in (0, 8)])
    kept = four >= np.uint32(threshold(rate))
    count = kept.shape[1]
    outcomes = np.bincount((1 << np.arange(4)) @ kept, minlength=16)
    for outcome in range(16):
        expected = math.prod(1 - rate if outcome >> k & 1 else rate for k in range(4))
        noise = math.sqrt(expected * (1 - expected) / count)
        assert abs(outcomes[outcome] / count - expected) < 5 * noise, f"{outcome:04b}"
    for a, b in itertools.combinations(range(4), 2):
        assert abs(correlation(four[a], four[b], rate)) < 5, (a, b)


@pytest.mark.parametrize("rate", RATES)
def test_indices_that_differ_in_one_bit_are_independent(rate):
    """The far bits show what the near ones hide: a hash whose high bits are not mixed downwards."""
    rows, cols = np.arange(2048)[:, None], np.array([0, 5, 8, 13, 100, 1009, 4090, 65521])
    here = sample(row=rows, col=cols)
    for bit in range(31):
        assert abs(correlation(here, sample(row=rows, col=cols ^ 1 << bit), rate)) < 5, bit
        assert abs(correlation(here, sample(row=rows ^ 1 << bit, col=cols), rate)) < 5, bit


@pytest.mark.parametrize("words", [(4, 0, 0), (3 + 2**31, 0, 0), (3, 1, 0), (3, 0, 1), (3, 1, 1)])
def test_seeds_batches_and_heads_are_independent(words):
    index = {"row": np.arange(512)[:, None], "col": np.arange(512)}
    here, there = sample(**index), sample(words, **index)
    for rate in RATES:
        assert abs(correlation(here, there, rate)) < 5
        # Nor is one the other moved by a row or a column.
        assert abs(correlation(here[1:], there[:-1], rate)) < 5
        assert abs(correlation(here[:, 1:], there[:, :-1], rate)) < 5


@pytest.mark.parametrize("last", range(4))
def test_each_bit_of_the_hash_decides(last):
    """The strict avalanche criterion, for the eight bits that decide at the usual rates."""
    x = np.random.default_rng(0).integers(0, 2**32, 2**16, dtype=np.uint32)

    def high(x):
        x = (x ^ x >> 16) * np.uint32(0x7FEB352D)
        return (x ^ x >> 15) * np.uint32(LAST[last]) >> 24

    for bit in range(32):
        flipped = high(x) ^ high(x ^ np.uint32(1 << bit))
        share = [np.mean(flipped >> k & 1) for k in range(8)]
        assert np.abs(np.array(share) - 0.5).max() < 5 * 0.5 / 2**8, bit


def test_the_factors_are_odd_and_products():
    assert LAST == (0x846CA68B, 0x4ED27881, 0xEF097A51, 0x4F690B93)
    assert all(factor % 2 for factor in LAST)


@pytest.mark.parametrize("pair", list(itertools.combinations(range(4), 2)))
def test_two_weights_of_a_hash_lie_on_a_good_lattice(pair):
    assert figure([LAST[k] for k in pair]) > 0.94


@pytest.mark.parametrize(
    ("weights", "least"),
    [*((t, 0.79) for t in itertools.combinations(range(4), 3)), (range(4), 0.77)],
)
def test_more_weights_of_a_hash_lie_on_a_good_lattice(weights, least):
    assert figure([LAST[k] for k in weights]) > least


@pytest.mark.parametrize("size", [2, 3, 4])
def test_known_shortest_vectors(size):
    """Of the multiplier 69069: Knuth, volume 2, table 1 of section 3.3.4."""
    expected = {2: 4243209856, 3: 2072544, 4: 52804}
    assert shortest([69069**k for k in range(size)]) == expected[size]


def test_equal_factors_have_no_figure():
    assert figure((1, 1)) < 1e-4


def figure(factors) -> float:
    """The spectral test's figure of merit of ``x * factors`` modulo 2**32: 1 at best."""
    size = len(factors)
    hermite = {2: 4 / 3, 3: 2, 4: 4}[size]
    return math.sqrt(shortest(factors)) / (hermite ** (1 / 2 / size) * 2 ** (32 / size))


def shortest(factors) -> int:
    """The squared length of the shortest ``u``, not 0, for which ``u . factors`` is a multiple of 2**32."""
    inverse = pow(factors[0], -1, 2**32)
    basis = np.eye(len(factors), dtype=object)
    basis[:, 0] = [2**32, *(-f * inverse % 2**32 for f in factors[1:])]
    basis = np.array(reduced(basis.tolist()), object)
    some = np.array(list(itertools.product(range(-3, 4), repeat=len(factors))), object)
    return min(((some[some.any(1)] @ basis) ** 2).sum(1))


def reduced(basis: list[list[int]]) -> list[list[int]]:
    """Gauss' reduction of every two: no vector gets shorter by a multiple of another. Changes its argument."""
    changed = True
    while changed:
        changed = False
        for a, b in itertools.permutations(basis, 2):
            dot, norm = sum(x * y for x, y in zip(a, b, strict=True)), sum(x * x for x in b)
            times = (2 * dot + norm) // (2 * norm)
            if times and 2 * abs(dot) > norm:
                a[:] = [x - times * y for x, y in zip(a, b, strict=True)]
                changed = True
    return basis


def test_threshold_stays_in_range():
    assert threshold(0.0) == 0
    assert threshold(0.5) == 2**31
    assert threshold(1 - 2**-40) == 2**32 - 1
