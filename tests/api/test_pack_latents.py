"""Latents packed to bytes: what they hold, and the calls that read them."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune.schema.errors import UsageError
from tests.kernels.paged_decode.dense_numpy import unpacked, wide

L, R, HEADS, PAGE = 256, 16, 3, 8
LATENTS = jax.random.normal(jax.random.key(0), (6, PAGE, L + R), jnp.bfloat16) * jnp.exp2(jnp.arange(L + R) / 32)
PACKED = attn_tune.pack_latents(LATENTS.astype(jnp.bfloat16), L)
LENGTHS, TABLE = jnp.array([5, 16, 0]), jnp.arange(6).reshape(3, 2)


def dequantised():
    return unpacked(types.SimpleNamespace(v_head_dim=L, dtype="bfloat16"), np.asarray(PACKED))


def decode(latents, q, **more):
    options = {"softmax_scale": 0.01, "return_lse": True} | more
    return attn_tune.mla_decode(q[..., :L], q[..., L:], latents, LENGTHS, TABLE, **options)


def test_packed_latents_are_codes_with_scales_beside_an_exact_rotary_part():
    latents, found = wide(LATENTS.astype(jnp.bfloat16)), dequantised()
    assert PACKED.shape == (6, PAGE, L + L // 32 + 2 * R)
    np.testing.assert_array_equal(found[..., L:], latents[..., L:])
    most = np.abs(latents[..., :L]).reshape(-1, 128).max(1)
    off = np.abs(found - latents)[..., :L].reshape(-1, 128)
    # Codes have three bits behind the first.
    assert (off <= np.maximum(np.abs(latents[..., :L]).reshape(-1, 128) / 16, most[:, None] / 448 / 512) * 1.001).all()
    assert not np.asarray(attn_tune.pack_latents(jnp.zeros((2, 128), jnp.float16), 128))[:, :128].any()


@pytest.mark.parametrize("shape", [(3, HEADS, L + R), (3, 2, HEADS, L + R)])
def test_decoding_over_packed_latents_is_that_over_their_values(shape):
    q = jax.random.normal(jax.random.key(1), shape, jnp.bfloat16)
    expected = decode(jnp.asarray(dequantised(), jnp.bfloat16), q)
    for found, other in zip(decode(PACKED, q), expected, strict=True):
        np.testing.assert_allclose(wide(found), wide(other), rtol=3e-2, atol=6e-2)


@pytest.mark.parametrize(
    ("latents", "change", "words"),
    [
        (PACKED[..., :-1], {}, r"must be \[pages, P, 296\]"),
        (PACKED, {"kv_scale": 0.5}, "hold their scales"),
        (PACKED, {"mesh": jax.make_mesh((1,), ("x",))}, "call mla_ragged"),
        (PACKED, {"platform": "triton_hopper_latent"}, None),
    ],
)
def test_malformed_calls_over_packed_latents_are_refused_by_name(latents, change, words):
    q = jnp.zeros((3, HEADS, L + R), jnp.bfloat16)
    with pytest.raises(UsageError if words else attn_tune.UnsupportedError, match=words):
        decode(latents, q, **change)


@pytest.mark.parametrize(
    ("latents", "width", "words"),
    [
        (jnp.zeros((2, 144)), 128, "bfloat16 or float16"),
        (jnp.zeros((2, 144), jnp.bfloat16), 100, "multiple of 128 up to 144"),
        (jnp.zeros((2, 144), jnp.bfloat16), 0, "multiple of 128 up to 144"),
        (jnp.zeros((2, 144), jnp.bfloat16), -128, "multiple of 128 up to 144"),
        (jnp.zeros((2, 144), jnp.bfloat16), 128.0, "an integer, a multiple of 128"),
        (jnp.zeros((2, 144), jnp.bfloat16), True, "an integer, a multiple of 128"),
        (jnp.zeros((2, 144), jnp.bfloat16), 256, "multiple of 128 up to 144"),
    ],
)
def test_latents_that_cannot_be_packed_are_refused_by_name(latents, width, words):
    with pytest.raises(UsageError, match=words):
        attn_tune.pack_latents(latents, width)


@pytest.mark.parametrize("shape", [(0,), (0, PAGE), (3, 0)])
def test_latents_of_no_tokens_pack_to_an_empty_cache(shape):
    found = attn_tune.pack_latents(jnp.zeros((*shape, L + R), jnp.bfloat16), np.int64(L))
    assert (found.shape, found.dtype) == ((*shape, PACKED.shape[-1]), jnp.uint8)


@pytest.mark.parametrize("value", [0, 0.0, -1.0, np.float32("nan"), np.full((), np.inf)])
def test_a_factor_of_latents_that_is_not_positive_and_finite_is_refused_by_name(value):
    q = jnp.zeros((3, HEADS, L + R), jnp.bfloat16)
    with pytest.raises(UsageError, match="kv_scale must be positive and finite in float32, got"):
        decode(LATENTS.astype(jnp.float8_e4m3fn), q, kv_scale=value)


def test_an_empty_cache_of_latents_is_refused_by_name():
    with pytest.raises(UsageError, match=r"latent_pages is empty, its shape is \(0, 8, 296\)"):
        decode(PACKED[:0], jnp.zeros((3, HEADS, L + R), jnp.bfloat16))


def test_lengths_that_are_no_integers_are_not_said_to_differ_from_themselves():
    q, ends = jnp.zeros((3, HEADS, L + R), jnp.bfloat16), jnp.arange(4)
    with pytest.raises(UsageError, match=r"kv_lens must be integers \[3\], got float32\[3\]"):
        attn_tune.mla_ragged(q[..., :L], q[..., L:], PACKED, LENGTHS * 1.0, ends, TABLE, softmax_scale=0.01)


def test_empty_sequences_of_packed_latents_have_their_sinks():
    q, sinks = jnp.ones((3, HEADS, L + R), jnp.bfloat16), jnp.arange(HEADS, dtype=jnp.float32)
    out, lse = jax.jit(lambda n: decode(PACKED, q, softmax_aux=sinks, num_seqs=n))(1)
    assert not np.asarray(out[1:], np.float32).any()
    np.testing.assert_array_equal(lse[1:], jnp.broadcast_to(sinks, (2, HEADS)))
    np.testing.assert_array_equal(lse[0], decode(PACKED, q, softmax_aux=sinks)[1][0])
