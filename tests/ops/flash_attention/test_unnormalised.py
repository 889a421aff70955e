"""``normalize_output=False``: the accumulator, relative to the row's largest logit, with its own derivative."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.api.flash_attention import flash_attention
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.flash_attention.unnormalised import row_maximum
from tests.kernels.dense import bounds

B, T, N, K, H = 2, 7, 4, 2, 8
# More keys than one chunk of the pass over them, and no multiple of it.
S = 300


def draw(seed, *shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32), dtype)


def qkv(q_len=T, kv_len=S):
    return draw(1, B, q_len, N, H), draw(2, B, kv_len, K, H), draw(3, B, kv_len, K, H)


def accumulator(q, k, v, bias, sinks, *, visible, cap=None):
    """By its definition: the sum of ``exp(logit - largest) * v``. ``sinks`` is [N, num_sinks] or None.

    The largest logit is looked up by its place: a compiled ``max`` loses its gradient where its operand is computed
    twice and rounded otherwise.
    """
    k, v = (jnp.repeat(x, N // K, axis=2) for x in (k, v))
    logits = H**-0.5 * jnp.einsum("btnh,bsnh->bnts", q, k, precision="highest")
    if cap is not None:
        logits = cap * jnp.tanh(logits / cap)
    logits = jnp.where(visible, logits + bias, -jnp.inf)
    joined = logits
    if sinks is not None:
        shape = (*logits.shape[:3], sinks.shape[1])
        joined = jnp.concatenate([logits, jnp.broadcast_to(sinks[:, None], shape)], axis=-1)
    largest = jnp.take_along_axis(joined, jnp.argmax(joined, -1, keepdims=True), axis=-1)
    return jnp.einsum("bnts,bsnv->btnv", jnp.exp(logits - largest), v, precision="highest")


@pytest.mark.parametrize(("sink", "cap"), [(None, None), (-4.0, 2.0), (4.0, None)])
def test_value_and_gradients_are_those_of_the_definition(sink, cap):
    values = [*qkv(), draw(4, 1, N, 1, S)]
    if sink is not None:
        # With three sinks a head their logsumexp is well above the largest of them.
        values.append(draw(5, N, 3) / 8 + sink)
    visible, weight = bounds(T, S, causal=True, left=280), draw(7, B, T, N, H)

    def ours(q, k, v, bias, sinks=None):
        out = flash_attention(
            q, k, v, bias, softmax_aux=sinks, causal=True, sliding_window=(280, None),
            logits_soft_cap=cap, normalize_output=False,
        )  # fmt: skip
        return jnp.sum(out * weight), out

    def theirs(q, k, v, bias, sinks=None):
        out = accumulator(q, k, v, bias, sinks, visible=visible, cap=cap)
        return jnp.sum(out * weight), out

    @jax.jit
    def both(*values):
        every = tuple(range(len(values)))
        return tuple(jax.value_and_grad(f, every, has_aux=True)(*values) for f in (ours, theirs))

    got, want = both(*values)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-5, rtol=5e-5), got, want)


def test_the_gradient_goes_through_the_largest_logit():
    # With one key the result is its value for any logit: a constant maximum would give a gradient.
    q, k, v = draw(1, 1, 1, 1, H), draw(2, 1, 1, 1, H), draw(3, 1, 1, 1, H)
    call = lambda q, k: flash_attention(q, k, v, normalize_output=False).sum()  # noqa: E731
    for grad in jax.jit(jax.grad(call, (0, 1)))(q, k):
        np.testing.assert_allclose(grad, jnp.zeros_like(grad), atol=1e-6)


def test_of_equal_logits_the_first_key_takes_the_gradient():
    q, v = draw(1, 1, 1, 1, H), draw(3, 1, 4, 1, H)
    k = jnp.broadcast_to(draw(2, 1, 1, 1, H), v.shape)

    def total(k):
        return flash_attention(q, k, v, normalize_output=False).sum()

    # d/dl_j of sum_i v_i exp(l_i - l_0) is v_j, and for the first less the sum of all.
    share = v.sum(-1)[0, :, 0] - jnp.array([1.0, 0, 0, 0]) * v.sum()
    want = share[:, None] * q[0, 0] * H**-0.5
    np.testing.assert_allclose(jax.jit(jax.grad(total))(k)[0, :, 0], want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sink", [None, 1.0, -jnp.inf])
def test_rows_that_see_nothing_are_zero_and_have_no_gradient(sink):
    aux = None if sink is None else jnp.full((N, 2), sink)

    @jax.jit
    def run(*arrays):
        def loss(q, k, v):
            out = flash_attention(q, k, v, softmax_aux=aux, causal=True, normalize_output=False)
            return out.sum(), out

        return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*arrays)

    (_, out), grads = run(*qkv(q_len=9, kv_len=5))
    assert not out[:, :4].any()
    assert not grads[0][:, :4].any()
    assert all(jnp.isfinite(g).all() for g in grads)


def test_the_largest_logit_of_float32_is_as_exact_as_the_products_of_kernels():
    # On a GPU the default is one pass of tf32, whose error the quotient of the two would show.
    def largest(dtype):
        q, k, v = (jax.ShapeDtypeStruct((1, 8, 1, 16), dtype) for _ in range(3))
        problem = Problem(batch=1, q_len=8, kv_len=8, num_q_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16)
        jaxpr = jax.make_jaxpr(lambda *x: row_maximum(problem, Operands(*x), None))(q, k, v)
        return set(re.findall(r"precision=\(?([\w.]+)", str(jaxpr)))

    assert largest(jnp.float32) == {"Precision.HIGHEST"}
    assert "Precision.HIGHEST" not in largest(jnp.bfloat16)


def test_no_array_is_as_large_as_the_logits():
    length = 4096
    q, k, v = (jax.ShapeDtypeStruct((1, length, 1, 16), jnp.float32) for _ in range(3))
    loss = lambda *x: flash_attention(*x, normalize_output=False).sum()  # noqa: E731
    memory = jax.jit(jax.grad(loss, (0, 1, 2))).lower(q, k, v).compile().memory_analysis()
    assert memory.temp_size_in_bytes < length * length
