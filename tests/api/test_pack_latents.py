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
        (jnp.zeros((2, 144), jnp.bfloat16), 256, "multiple of 128 up to 144"),
    ],
)
def test_latents_that_cannot_be_packed_are_refused_by_name(latents, width, words):
    with pytest.raises(UsageError, match=words):
        attn_tune.pack_latents(latents, width)
