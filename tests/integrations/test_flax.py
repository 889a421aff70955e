"""``attention_fn`` against flax's own attention, in linen and in nnx."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attn_tune
from attn_tune import UsageError
from attn_tune.integrations.flax import attention_fn

B, T, FEATURES, HEADS = 2, 7, 16, 4


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


X = draw(0, B, T, FEATURES)
TOKENS = np.array([[1, 1, 1, 1, 0, 0, 0], [1] * T])


@functools.cache
def causal_lm():
    """The mask of a language model, as flax's functions make it."""
    # Kept between tests, so no array of the trace that asks first.
    with jax.ensure_compile_time_eval():
        return nn.combine_masks(nn.make_causal_mask(TOKENS), nn.make_attention_mask(TOKENS, TOKENS))


def linen(**options):
    module = nn.MultiHeadDotProductAttention(num_heads=HEADS, qkv_features=FEATURES, **options)

    def apply(variables, x, **arguments):
        return module.apply(variables, x, **arguments)

    return module, apply


def assert_same(got, want, tolerance=2e-5):
    def check(a, b):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance)

    jax.tree.map(check, got, want)


def test_linen_with_the_mask_of_a_language_model():
    module, apply = linen(attention_fn=attention_fn)
    _, apply_flax = linen()
    variables = module.init(jax.random.key(0), X)

    def gradients(apply):
        return jax.value_and_grad(lambda v, x: jnp.sum(apply(v, x, mask=causal_lm()) ** 2), (0, 1))

    run = jax.jit(lambda v, x: (gradients(apply)(v, x), gradients(apply_flax)(v, x)))
    assert_same(*run(variables, X), 1e-4)
    # The mask counts. Rows of padding see nothing, and are among what was compared.
    assert not np.allclose(apply(variables, X), apply(variables, X, mask=causal_lm()), atol=1e-3)


def test_linen_decodes_from_its_cache():
    results = []
    for options in ({"attention_fn": attention_fn}, {}):
        module, _ = linen(decode=True, **options)
        variables = module.init(jax.random.key(0), X)
        outs, cache = [], variables["cache"]
        step = jax.jit(lambda v, x, module=module: module.apply(v, x, mutable=["cache"]))
        for i in range(3):
            out, changed = step({"params": variables["params"], "cache": cache}, X[:, i : i + 1])
            cache = changed["cache"]
            outs.append(out)
        results.append(jnp.concatenate(outs, axis=1))
    assert_same(*results)


@pytest.mark.parametrize("is_causal", [False, True])
def test_nnx_with_grouped_heads_and_gradients(is_causal):
    def of(options):
        module = nnx.MultiHeadAttention(HEADS, FEATURES, num_kv_heads=2, decode=False, rngs=nnx.Rngs(0), **options)

        @nnx.jit
        def run(module, x, mask):
            return nnx.value_and_grad(lambda m, x: jnp.sum(m(x, mask=mask, is_causal=is_causal) ** 2), argnums=(0, 1))(
                module, x
            )

        value, (of_module, of_x) = run(module, X, None if is_causal else causal_lm())
        return value, jax.tree.leaves(nnx.state(of_module)), of_x

    assert_same(of({"attention_fn": attention_fn}), of({}), 1e-4)


@pytest.mark.parametrize(("batch", "shape"), [((), (5, 4)), ((2, 3), (2, 1, 4)), ((2, 3), (2, 1, 2, 5, 4))])
def test_any_batch_axes_biases_and_value_dims(batch, shape):
    q, k, v = draw(1, *batch, 5, 2, 8), draw(2, *batch, 4, 2, 8), draw(3, *batch, 4, 2, 6)
    pairs = {"bias": draw(4, *shape), "mask": (draw(5, *shape) > -0.5).astype(jnp.float32)}

    def run(q, k, v, pairs):
        want = nn.dot_product_attention(q, k, v, **pairs, deterministic=True)
        return attention_fn(q, k, v, **pairs), want

    assert_same(*jax.jit(run)(q, k, v, pairs))


def test_the_dtype_of_the_module_is_that_of_the_computation():
    q, k, v = (draw(i, 1, 4, 2, 8) for i in range(3))
    out = attention_fn(q, k.astype(jnp.bfloat16), v, dtype=jnp.bfloat16)
    assert out.dtype == jnp.bfloat16
    assert attention_fn(q, k.astype(jnp.bfloat16), v).dtype == jnp.float32
    with pytest.raises(UsageError, match="precision must be"):
        attention_fn(q, k, v, precision="BF16_BF16_F32_X3")


@pytest.mark.parametrize("raw", [False, True])
def test_dropout_drops_each_weight_with_its_probability(raw):
    # With the identity as values the output is the matrix of weights.
    t, rate = 64, 0.25
    q = k = jnp.zeros((1, t, 2, t))
    v = jnp.broadcast_to(jnp.eye(t)[:, None], (1, t, 2, t))
    draw_weights = jax.jit(
        lambda key: attention_fn(q, k, v, dropout_rng=key, dropout_rate=rate, broadcast_dropout=False)
    )
    make = jax.random.PRNGKey if raw else jax.random.key
    weights = np.asarray(draw_weights(make(0)))
    kept = weights > 0
    np.testing.assert_allclose(weights[kept], 1 / t / (1 - rate), rtol=1e-5)
    # 8192 weights: five standard deviations are 0.024.
    assert abs(kept.mean() - (1 - rate)) < 0.024
    assert abs((kept[:, :, 0] == kept[:, :, 1]).mean() - (rate**2 + (1 - rate) ** 2)) < 0.04
    assert (np.asarray(draw_weights(make(0))) == weights).all()
    assert (np.asarray(draw_weights(make(1))) != weights).any()


def test_deterministic_modules_drop_nothing():
    module, apply = linen(attention_fn=attention_fn, dropout_rate=0.5, broadcast_dropout=False)
    _, apply_flax = linen()
    variables = module.init(jax.random.key(0), X, deterministic=True)
    still = apply(variables, X, deterministic=True)
    assert_same(still, apply_flax(variables, X))
    dropped = apply(variables, X, deterministic=False, rngs={"dropout": jax.random.key(1)})
    assert not np.allclose(still, dropped, atol=1e-3)


def test_linen_modules_with_shared_dropout_are_refused():
    module, apply = linen(attention_fn=attention_fn, dropout_rate=0.5)
    variables = module.init(jax.random.key(0), X, deterministic=True)
    with pytest.raises(UsageError, match="broadcast_dropout=False"):
        apply(variables, X, deterministic=False, rngs={"dropout": jax.random.key(1)})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"module": object()}, "sow_weights"),
        ({"qk_attn_weights_einsum": jnp.einsum}, "qk_attn_weights_einsum"),
        ({"dropout_rate": 0.5, "broadcast_dropout": False}, "dropout_rng is missing"),
        (
            {"dropout_rate": -0.1, "broadcast_dropout": False, "dropout_rng": jax.random.key(0)},
            r"must be in \[0, 1\), got -0.1",
        ),
        ({"query": jnp.ones((1, 1, 2, 8)), "is_causal": True}, "one query would not see the last of 4 keys"),
        ({"query": jnp.ones((1, 1, 2, 8)), "local_window_size": (3, 0)}, "decode=True the module's own mask is enough"),
        ({"mask": jnp.ones((3, 2, 4, 4))}, "mask has the batch axes"),
        ({"bias": jnp.ones((1, 1, 1, 4, 4))}, "bias must broadcast"),
        ({"key": jnp.ones((2, 4, 2, 8))}, "key must have shape"),
    ],
)
def test_arguments_that_cannot_be_honoured_are_refused(arguments, message):
    arrays = dict.fromkeys(("query", "key", "value"), jnp.ones((1, 4, 2, 8)))
    with pytest.raises(UsageError, match=message):
        attention_fn(**arrays | arguments)


@pytest.mark.parametrize(
    "function",
    [attn_tune.flash_attention, functools.partial(attn_tune.flash_attention, causal=True)],
)
@pytest.mark.parametrize("is_masked", [False, True])
def test_flash_attention_itself_is_refused_as_an_attention_fn(function, is_masked):
    module, _ = linen(attention_fn=function)
    with pytest.raises(UsageError, match=r"from attn_tune\.integrations\.flax import attention_fn"):
        module.init(jax.random.key(0), X, **({"mask": causal_lm()} if is_masked else {}))


def test_a_causal_edge_for_functools_partial_keeps_its_structure():
    asked = []
    stop = attn_tune.add_listener(asked.append)
    try:
        module, apply = linen(attention_fn=functools.partial(attention_fn, is_causal=True))
        variables = module.init(jax.random.key(0), X)
        got = apply(variables, X)
    finally:
        stop()
    assert " causal=1" in asked[-1].signature
    assert " mask=" not in asked[-1].signature
    want = linen()[1](variables, X, mask=nn.make_causal_mask(X[..., 0]))
    assert_same(got, want)
