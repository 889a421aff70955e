"""The op's contract around libraries' kernels: sinks after the fact, a given delta, bounds that hide something."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.kernels.lang.libraries.features import visible_bounds
from attn_tune.kernels.lang.libraries.residuals import (
    finite_lse,
    own_delta,
    with_sinks,
)
from attn_tune.ops.flash_attention.problem import Problem

N, H = 4, 64


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
@pytest.mark.parametrize("dout_scale", [1.0, 1e-3, 0.0])
@pytest.mark.parametrize("dlse_scale", [1.0, 30.0])
def test_the_delta_a_library_computes_is_the_given_one(dtype, dout_scale, dlse_scale):
    shape = (2, 16, N, H)
    out = jax.random.normal(jax.random.key(0), shape).astype(dtype)
    dout = (dout_scale * jax.random.normal(jax.random.key(1), shape)).astype(dtype)
    dlse = dlse_scale * jax.random.normal(jax.random.key(2), (2, N, 16))
    delta = _product(out, dout) - dlse
    # A fully masked row has none.
    delta = delta.at[0, 0, 0].set(0.0)
    new_out, new_dout = own_delta(True, out, dout, delta)
    assert new_dout.dtype == dtype
    np.testing.assert_allclose(_product(new_out, new_dout), delta, rtol=1e-5, atol=1e-6)
    change = jnp.abs(new_dout.astype(jnp.float32) - dout.astype(jnp.float32)).max()
    assert change <= 2**-11 * jnp.abs(delta).max()
    same_out, same_dout = own_delta(False, out, dout, delta)
    assert same_out is out
    assert same_dout is dout


def test_a_tiny_cotangent_carries_its_delta_too():
    shape = (1, 1, 1, H)
    dout = jnp.full(shape, 1e-30, jnp.float32)
    delta = jnp.full((1, 1, 1), 1e-29)
    out, dout = own_delta(True, jnp.zeros(shape), dout, delta)
    np.testing.assert_allclose(_product(out, dout), delta, rtol=1e-5)


def test_sinks_rescale_the_output_and_join_the_lse():
    logits = jax.random.normal(jax.random.key(0), (1, N, 8, 12))
    v = jax.random.normal(jax.random.key(1), (1, 12, N, H))
    sinks = jax.random.normal(jax.random.key(2), (N,))
    out = jnp.einsum("bnts,bsnv->btnv", jax.nn.softmax(logits), v)
    got = with_sinks(out, jax.nn.logsumexp(logits, axis=-1), sinks)
    column = jnp.broadcast_to(sinks[None, :, None, None], (1, N, 8, 1))
    joined = jnp.concatenate([logits, column], -1)
    weights = jax.nn.softmax(joined)[..., :-1]
    np.testing.assert_allclose(got["out"], jnp.einsum("bnts,bsnv->btnv", weights, v), atol=1e-5)
    np.testing.assert_allclose(got["lse"], jax.nn.logsumexp(joined, axis=-1), atol=1e-5)


def test_a_row_that_sees_nothing_has_weights_of_zero():
    lse = finite_lse(jnp.array([[[-jnp.inf, 1.0]]]))
    weights = jnp.exp(jnp.array([[[3.0, 1.0]]]) - lse)
    np.testing.assert_array_equal(weights, [[[0.0, 1.0]]])


def test_a_bound_that_hides_nothing_is_none():
    for q_len, kv_len, left, right in itertools.product((1, 3, 5), (1, 4, 5), (None, 0, 2, 4), (None, 0, 3, 5)):
        problem = Problem(
            batch=1, q_len=q_len, kv_len=kv_len, num_q_heads=1, num_kv_heads=1, head_dim=8,
            v_head_dim=8, window=(left, right),
        )  # fmt: skip
        rows = np.arange(q_len)[:, None] + kv_len - q_len
        columns = np.arange(kv_len)[None]
        hides = (
            left is not None and bool((columns < rows - left).any()),
            right is not None and bool((columns > rows + right).any()),
        )
        want = (left if hides[0] else None, right if hides[1] else None)
        assert visible_bounds(problem) == want


def _product(out, dout):
    return jnp.einsum("btnv,btnv->bnt", out.astype(jnp.float32), dout.astype(jnp.float32), precision="highest")
