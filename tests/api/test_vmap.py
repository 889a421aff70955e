"""vmap equals a loop, forward and gradients, whether the mapped axis can be folded into the batch or not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.api.flash_attention import flash_attention
from attn_tune.api.flash_attention_call import CALL
from attn_tune.api.folding import fold_vmap
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.runtime.answer_listeners import add_listener

A, B, T, S, N, K, H = 2, 2, 5, 7, 2, 1, 8


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


CASES = {
    # name: (arrays besides q, k, v with their mapped axis, fixed arguments)
    "bias_per_element": ({"bias": (draw(4, A, B, N, T, S), 0)}, {"causal": True}),
    "bias_shared": ({"bias": (draw(4, 1, N, T, S), None), "softmax_aux": (draw(5, N), None)}, {}),
    "dropout_and_sinks": (
        {"softmax_aux": (draw(5, A, N), 0)},
        {"dropout_prob": 0.3, "dropout_seed": 3},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_vmap_equals_a_loop(name):
    extra, fixed = CASES[name]
    names = list(extra)
    q, k, v = draw(1, A, B, T, N, H), draw(2, B, S, K, H), draw(3, A, B, S, K, H)
    arrays = (q, k, v, *(extra[n][0] for n in names))
    axes = (0, None, 0, *(extra[n][1] for n in names))
    weight = draw(7, B, T, N, H)

    def one(*arrays):
        more = dict(zip(names, arrays[3:], strict=True))
        return jnp.sum(weight * flash_attention(*arrays[:3], **fixed, **more))

    grad = jax.value_and_grad(one, tuple(range(len(arrays))))

    @jax.jit
    def both(*arrays):
        loop = [grad(*(x if axis is None else x[i] for x, axis in zip(arrays, axes, strict=True))) for i in range(A)]
        return jax.vmap(grad, axes)(*arrays), jax.tree.map(lambda *x: jnp.stack(x), *loop)

    got, want = both(*arrays)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=2e-5), got, want)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_an_axis_of_size_0_gives_empty_results_as_in_jax(transform):
    q, k = jnp.zeros((0, B, T, N, H), jnp.bfloat16), jnp.zeros((0, B, S, K, H), jnp.bfloat16)

    def results_of(attention):
        def total(q, k):
            return jnp.sum(attention(q, k, k).astype(jnp.float32))

        mapped = jax.vmap(lambda q, k: attention(q, k, k))
        grads = jax.grad(lambda q, k: jnp.sum(jax.vmap(total)(q, k)), (0, 1))
        return tuple(transform(f)(q, k) for f in (mapped, grads, jax.vmap(jax.grad(total, (0, 1)))))

    got = results_of(lambda *x: flash_attention(*x, softmax_aux=jnp.zeros(N)))
    want = results_of(jax.nn.dot_product_attention)
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, want)


def test_operands_that_are_not_mapped_over_an_axis_of_size_0_have_zero_gradients():
    q, k, v = draw(1, B, T, N, H), draw(2, B, S, K, H), jnp.zeros((0, B, S, K, H))

    def total(q, k):
        attend = functools.partial(flash_attention, dropout_prob=0.5)
        return jnp.sum(jax.vmap(attend, (None, None, 0))(q, k, v))

    with jax.disable_jit():
        got = jax.grad(total, (0, 1))(q, k)
    jax.tree.map(lambda g, x: np.testing.assert_array_equal(g, 0 * x), got, (q, k))


def test_folding_makes_one_call_and_keeps_broadcast_axes():
    shapes = []

    def kernel(o):
        shapes.append((o.q.shape, o.k.shape, o.bias.shape, o.mask.shape))
        return {"out": o.q}

    operands = Operands(
        q=draw(1, A, B, T, N, H),
        k=draw(2, B, S, K, H),
        v=draw(2, B, S, K, H),
        bias=draw(4, 1, N, T, S),
        mask=jnp.ones((A, 1, 1, T, S), bool),
    )
    axes = Operands(q=0, k=None, v=None, bias=None, mask=0)
    problem = Problem(
        batch=B, q_len=T, kv_len=S, num_q_heads=N, num_kv_heads=K, head_dim=H, v_head_dim=H,
        needs_lse=False,
    )  # fmt: skip
    out = jax.vmap(fold_vmap(CALL, problem, kernel), (axes,))(operands)["out"]
    np.testing.assert_array_equal(out, operands.q)
    folded = ((A * B, T, N, H), (A * B, S, K, H), (1, N, T, S), (A * B, 1, T, S))
    assert shapes[-1] == folded


@pytest.mark.parametrize("mapped", [True, False], ids=["offsets of each", "one for all"])
def test_packed_sequences_are_folded_without_their_offsets(mapped):
    """Their ids say the same of a batch; element by element a row of models would run its calls one after another."""
    q, k, v = draw(1, A, 1, T, N, H), draw(2, A, 1, T, K, H), draw(3, A, 1, T, K, H)
    ends = jnp.array([[0, 2, 5], [0, 3, 4]])
    weight = draw(7, 1, T, N, H)

    def one(q, k, v, ends):
        return jnp.sum(weight * flash_attention(q, k, v, cum_seqlens_q=ends, causal=True))

    grad = jax.value_and_grad(one, (0, 1, 2))
    of = (ends, 0) if mapped else (ends[0], None)
    got = jax.jit(jax.vmap(grad, (0, 0, 0, of[1])))(q, k, v, of[0])
    loop = [jax.jit(grad)(q[i], k[i], v[i], of[0][i] if mapped else of[0]) for i in range(A)]
    want = jax.tree.map(lambda *x: jnp.stack(x), *loop)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=2e-5), got, want)
    asked = []
    remove = add_listener(lambda answer: asked.append(str(answer.signature)))
    try:
        jax.jit(jax.vmap(one, (0, 0, 0, of[1]))).lower(q, k, v, of[0])
    finally:
        remove()
    # JAX traces an element before it asks for the rule; what runs is asked for last.
    assert f"b={A} " in asked[-1]
    assert asked[-1].endswith("causal=1 seg=1")
