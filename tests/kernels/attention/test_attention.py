"""The dense attention op: its public function against plain attention, and its kernel under the tolerance rule."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.api.attention import attention
from attn_tune.ops.attention.problem import Problem
from attn_tune.ops.masks.mask_info import MaskInfo
from attn_tune.schema.errors import UsageError
from tests.chosen import chosen
from tests.kernels.dense import bounds, dense_attention

B, T, S, N, K, H = 2, 7, 10, 4, 2, 8
MASK = np.random.default_rng(0).random((B, N, T, S)) < 0.7
F32 = {"dtype": jnp.float32}


def draw(seed, *shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32), dtype)


def qkv(q_len=T, kv_len=S, v_dim=H):
    return draw(1, B, q_len, N, H), draw(2, B, kv_len, K, H), draw(3, B, kv_len, K, v_dim)


CASES = {
    "plain": ({}, {}),
    "causal": ({"causal": True}, {"visible": bounds(T, S, causal=True)}),
    "window": ({"sliding_window": 2}, {"visible": bounds(T, S, left=2, right=2)}),
    "mask": ({"attention_mask": jnp.asarray(MASK)}, {"visible": MASK}),
    "mask_int_kv_heads": (
        {"attention_mask": jnp.asarray(MASK[:, :K], jnp.int32)},
        {"visible": np.repeat(MASK[:, :K], 2, axis=1)},
    ),
    "mask_rank_3": ({"attention_mask": jnp.asarray(MASK[:, 0])}, {"visible": MASK[:, :1]}),
    "mask_rank_2": (
        {"attention_mask": jnp.asarray(MASK[:, 0, 0])},
        {"visible": MASK[:, :1, :1]},
    ),
    "mask_info": (
        {"mask_info": MaskInfo.from_lengths(jnp.array([6, 10]), q_len=T, kv_len=S, causal=True)},
        {"visible": bounds(T, S, causal=True) & (np.arange(S) < np.array([[6], [10]]))[:, None, None]},
    ),
    "cap_scale": ({"logits_soft_cap": 2.0, "softmax_scale": 0.5}, {"cap": 2.0, "scale": 0.5}),
    "bias_and_mask": (
        {"bias": draw(4, 1, N, T, S), "attention_mask": jnp.asarray(MASK)},
        {"bias": draw(4, 1, N, T, S), "visible": MASK},
    ),
    "bias_kv_heads": (
        {"bias": draw(4, B, K, 1, S)},
        {"bias": jnp.repeat(draw(4, B, K, 1, S), 2, axis=1)},
    ),
    "sinks": ({"softmax_aux": draw(5, N)}, {"sinks": draw(5, N)}),
}


# Others are forms of an argument that these have too.
KEPT = (
    "mask_int_kv_heads",
    "mask_rank_2",
    "mask_info",
    "window",
    "cap_scale",
    "bias_and_mask",
    "bias_kv_heads",
    "sinks",
)


@pytest.mark.parametrize("name", chosen(CASES, KEPT))
def test_output_weights_and_gradients_equal_plain_attention(name):
    arguments, plain = CASES[name]
    arrays, pull = qkv(v_dim=12), draw(7, B, T, N, 12)

    def ours(*arrays):
        out, weights = attention(*arrays, **arguments, **F32)
        # out is the weights times the values, so the weights are right when both are used.
        again = jnp.einsum("bnts,bsnv->btnv", weights, jnp.repeat(arrays[2], N // K, axis=2))
        return jnp.sum((out + again) * pull), out

    def theirs(*arrays):
        out = dense_attention(*arrays, **plain)[0]
        return jnp.sum(2 * out * pull), out

    @jax.jit
    def both(*arrays):
        return tuple(jax.value_and_grad(f, (0, 1, 2), has_aux=True)(*arrays) for f in (ours, theirs))

    got, want = both(*arrays)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-5, rtol=3e-5), got, want)


def test_defaults_are_bfloat16_results_with_a_float32_softmax():
    out, weights = attention(*qkv())
    assert (out.dtype, weights.dtype) == (jnp.bfloat16, jnp.bfloat16)
    assert (out.shape, weights.shape) == ((B, T, N, H), (B, N, T, S))
    np.testing.assert_allclose(out.astype(jnp.float32), dense_attention(*qkv())[0], atol=3e-2)
    coarse = attention(*qkv(), dtype=jnp.float32, softmax_dtype=jnp.bfloat16)[1]
    assert 1e-4 < float(jnp.abs(coarse - attention(*qkv(), dtype=jnp.float32)[1]).max()) < 3e-2


@pytest.mark.parametrize("sinks", [None, draw(5, N)])
def test_rows_that_see_nothing_have_zero_weights_and_gradients(sinks):
    arrays = qkv(q_len=S, kv_len=T)

    def loss(*arrays):
        out, weights = attention(*arrays, causal=True, softmax_aux=sinks, **F32)
        return jnp.sum(out), weights

    (_, weights), grads = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*arrays)
    assert not weights[:, :, : S - T].any()
    assert not grads[0][:, : S - T].any()
    assert all(jnp.isfinite(g).all() for g in grads)


def test_dropout_needs_all_three_and_drops_per_head():
    arrays, key = qkv(), jax.random.key(0)
    plain = attention(*arrays, **F32)[1]
    for arguments in (
        {"dropout_prob": 0.5},
        {"dropout_prob": 0.0, "deterministic": False},
        {"dropout_prob": 0.5, "deterministic": True},
    ):
        np.testing.assert_array_equal(attention(*arrays, None, key, **arguments, **F32)[1], plain)
    out, weights = attention(*arrays, None, key, dropout_prob=0.5, deterministic=False, **F32)
    kept = np.asarray(weights != 0)
    np.testing.assert_allclose(weights[kept], 2 * plain[kept], rtol=1e-5)
    assert 0.35 < kept.mean() < 0.65
    assert not (kept[0] == kept[1]).all()
    assert not (kept[:, 0] == kept[:, 1]).all()
    v = jnp.repeat(arrays[2], N // K, axis=2)
    np.testing.assert_allclose(out, jnp.einsum("bnts,bsnv->btnv", weights, v), atol=1e-5)
    raw = jax.random.key_data(key)
    np.testing.assert_array_equal(
        attention(*arrays, None, raw, dropout_prob=0.5, deterministic=False, **F32)[1], weights
    )
    with pytest.raises(UsageError, match="dropout_rng is missing"):
        attention(*arrays, dropout_prob=0.5, deterministic=False)


def test_init_bias_is_called_only_without_a_bias_and_a_mask():
    arrays, made = qkv(), []

    def init_bias():
        made.append(1)
        return draw(4, 1, N, T, S)

    out = attention(*arrays, init_bias=init_bias, **F32)[0]
    np.testing.assert_array_equal(out, attention(*arrays, draw(4, 1, N, T, S), **F32)[0])
    assert made == [1]
    attention(*arrays, init_bias=init_bias, attention_mask=jnp.asarray(MASK), **F32)
    attention(*arrays, draw(6, 1, N, T, S), init_bias=init_bias, **F32)
    assert made == [1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dtype": jnp.int8}, "dtype must be one of"),
        ({"softmax_dtype": "float12"}, "softmax_dtype"),
        ({"dropout_prob": 1.0}, "dropout_prob"),
        ({"attention_mask": jnp.ones((B, 3, T, S), bool)}, "3 heads"),
        ({"bias": jnp.ones((B, N, T, S + 1))}, "bias has shape"),
        ({"sliding_window": -1}, "sliding_window"),
        ({"logits_soft_cap": 0.0}, "soft_cap must be positive"),
        ({"softmax_aux": jnp.ones((3, 2))}, "softmax_aux"),
    ],
)
def test_malformed_arguments_are_named(arguments, words):
    with pytest.raises(UsageError, match=words):
        attention(*qkv(), **arguments)


PROBLEM = Problem(
    batch=2,
    q_len=12,
    kv_len=12,
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=16,
    v_head_dim=16,
    scale=0.25,
)


def test_a_signature_has_its_fields_in_one_order_for_ever():
    problem = dataclasses.replace(
        PROBLEM,
        causal=True,
        window=(3, 5),
        mask_dims="b1ts",
        bias_dims="1nts",
        has_sinks=True,
        soft_cap=2.0,
        dropout_rate=0.2,
        softmax_dtype="bfloat16",
    )
    assert problem.signature.text == (
        "attention/v1 b=2 t=12 s=12 n=4 k=2 h=16 v=16 dtype=bfloat16 causal=1 left=3 right=5 mask=b1ts bias=1nts "
        "sinks=1 cap=1 drop=1 softmax=bfloat16"
    )
