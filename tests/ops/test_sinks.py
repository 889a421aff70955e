"""Sinks of minus infinity are no sinks: they change nothing and have the gradient zero, in both ops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.api.attention import attention
from attn_tune.api.flash_attention import flash_attention
from attn_tune.kernels.lang.libraries.residuals import with_sinks
from attn_tune.ops.fields.sinks import largest_sinks_of, sinks_of

INF = np.inf
B, T, S, N, K, H = 1, 3, 5, 2, 1, 4
Q, KEYS, V = (
    jnp.asarray(np.random.default_rng(i).standard_normal(shape, np.float32))
    for i, shape in enumerate(((B, T, N, H), (B, S, K, H), (B, S, K, H)))
)
OPS = {
    "flash_attention": lambda q, aux: flash_attention(q, KEYS, V, softmax_aux=aux),
    "unnormalised": lambda q, aux: flash_attention(q, KEYS, V, softmax_aux=aux, normalize_output=False),
    "attention": lambda q, aux: attention(q, KEYS, V, softmax_aux=aux, dtype=jnp.float32)[0],
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("aux", [[-INF, 1.0], [[-INF], [-INF]], [[-INF, -INF], [1.0, 1.0]], [[-INF, 0.5], [-INF, 2.0]]])
def test_minus_infinity_has_the_gradient_zero_and_changes_nothing(op, aux):
    aux = jnp.array(aux, jnp.float32)
    # Finite, and so small that it takes no part: what the gradients of all else must be.
    small = jnp.where(jnp.isneginf(aux), -1e4, aux)

    @jax.jit
    def value_and_grads(aux):
        return jax.value_and_grad(lambda q, a: OPS[op](q, a).sum(), (0, 1))(Q, aux)

    (value, (dq, daux)), (want, (want_dq, want_daux)) = map(value_and_grads, (aux, small))
    np.testing.assert_allclose(value, want, rtol=1e-6)
    np.testing.assert_allclose(dq, want_dq, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(daux, want_daux, rtol=1e-5, atol=1e-6)
    assert not daux[jnp.isneginf(aux)].any()


def test_several_sinks_are_one_logsumexp_and_have_one_largest():
    aux = jnp.array([[1.0, 2.0, -INF], [0.0, -INF, -INF]])
    np.testing.assert_allclose(sinks_of(aux, 4, 2), [2.3132617] * 2 + [0.0] * 2, rtol=1e-6)
    np.testing.assert_array_equal(largest_sinks_of(aux, 4, 2), [2.0, 2.0, 0.0, 0.0])


def test_a_library_row_that_sees_neither_key_nor_sink_stays_zero():
    out = jnp.zeros((1, 1, 2, 4)).at[:, :, 1].set(1.0)
    lse = jnp.array([[[-INF], [0.0]]])
    got = with_sinks(out, lse, jnp.array([-INF, 0.0]))
    np.testing.assert_array_equal(got["out"][0, 0, :, 0], [0.0, 0.5])
    np.testing.assert_allclose(got["lse"][0, :, 0], [-INF, np.log(2.0)], rtol=1e-6)
