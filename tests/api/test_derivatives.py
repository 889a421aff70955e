"""Derivatives that the kernels do not have are refused by name, and the way out that is named works."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.api.attention import attention
from attn_tune.api.flash_attention import flash_attention
from attn_tune.schema.errors import UnsupportedError

Q, K, V = (jnp.asarray(np.random.default_rng(i).standard_normal((1, 3, 2, 4), np.float32)) for i in range(3))


def loss(q):
    return jnp.sum(jnp.sin(flash_attention(q, K, V, causal=True)))


def pulled(cotangent):
    _, pull = jax.vjp(lambda q: flash_attention(q, K, V), Q)
    return pull(cotangent)[0].sum()


SECOND = {
    "hessian": jax.hessian(loss),
    "jacfwd of grad": jax.jacfwd(jax.grad(loss)),
    "grad of grad": jax.grad(lambda q: jax.grad(loss)(q).sum()),
    "under jit": jax.jit(jax.grad(lambda q: jax.jit(jax.grad(loss))(q).sum())),
    "under vmap": jax.grad(lambda q: jax.vmap(jax.grad(loss))(q[None]).sum()),
    "with checkpoint": jax.grad(lambda q: jax.grad(jax.checkpoint(loss))(q).sum()),
    "by the cotangent": jax.grad(pulled),
}


@pytest.mark.parametrize("name", SECOND)
def test_a_second_derivative_is_refused_by_name_with_the_way_out(name):
    with pytest.raises(UnsupportedError, match=r"flash_attention has no second derivative.*attn_tune\.attention"):
        SECOND[name](Q)


def dense(q):
    return jnp.sum(jnp.sin(attention(q, K, V, causal=True, dtype=jnp.float32)[0]))


@pytest.mark.parametrize("function", [loss, dense])
def test_forward_mode_is_refused_by_jax(function):
    with pytest.raises(TypeError, match=r"forward-mode.*custom_vjp"):
        jax.jvp(function, (Q,), (Q,))


def test_first_derivatives_are_taken_wherever_they_can_be():
    want = jax.grad(loss)(Q)
    step = lambda q, _: (q, jax.grad(loss)(q))  # noqa: E731
    for got in (
        jax.jit(jax.vmap(jax.grad(loss)))(Q[None])[0],
        jax.grad(jax.checkpoint(loss))(Q),
        jax.grad(lambda q: jax.vmap(loss)(q[None]).sum())(Q),
        jax.lax.scan(step, Q, length=2)[1][1],
        jax.jacrev(loss)(Q),
    ):
        np.testing.assert_allclose(got, want, atol=1e-6, rtol=1e-6)
    # A second derivative of what does not depend on the call is none of it.
    assert jax.grad(jax.grad(lambda x: x**3 + loss(Q)))(2.0) == 12.0


def plain(q):
    weights = jnp.einsum("btnh,bsnh->bnts", q, K) / 2.0
    weights = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((3, 3), bool)), weights, -1e30))
    return jnp.sum(jnp.sin(jnp.einsum("bnts,bsnh->btnh", weights, V)))


@pytest.mark.parametrize(
    "higher",
    [
        pytest.param(jax.hessian, id="hessian"),
        pytest.param(lambda f: jax.jacrev(jax.grad(f)), id="reverse over reverse", marks=pytest.mark.exhaustive),
        pytest.param(lambda f: jax.grad(lambda q: jax.vmap(jax.grad(f))(q[None]).sum()), id="vmap"),
    ],
)
def test_higher_derivatives_of_attention_are_those_of_the_plain_computation(higher):
    found, wanted = jax.jit(lambda q: (higher(dense)(q), higher(plain)(q)))(Q)
    np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("low", [-1e9, float(jnp.finfo(jnp.float32).min)])
def test_a_row_that_a_finite_bias_hides_has_no_gradient(low):
    q, k, v, weight = (
        jnp.asarray(np.random.default_rng(i).standard_normal((1, 16, 1, 16)), jnp.float32) for i in range(4)
    )
    bias = jnp.zeros((1, 1, 16, 1)).at[0, 0, 3].set(low)

    def gradients(bias, weight):
        loss = jax.grad(lambda *x: jnp.sum(flash_attention(*x, bias) * weight), (0, 1, 2))
        return jax.jit(loss)(q, k, v)

    others = gradients(jnp.zeros_like(bias), weight.at[:, 3].set(0))
    for got, want in zip(gradients(bias, weight), others, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6)
