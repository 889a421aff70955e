"""``attn_tune.dot_product_attention`` against ``jax.nn.dot_product_attention``, to the letter."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune import UnsupportedError, UsageError, dot_product_attention
from tests.chosen import chosen

SPECS = 17
CALLS = 15
B, H = 2, 8


def draw_spec(number, rng):
    """The static half of a call: sizes, which arguments there are, and the shapes of those that broadcast.

    Lengths and windows are taken in turn, with periods that have no divisor in common.
    """
    kv_heads, group = int(rng.choice([1, 2])), int(rng.choice([1, 3]))
    t, s = ((6, 6), (7, 4), (3, 8), (9, 2))[number % 4]
    pairs = [B, kv_heads * group, t, s]
    is_batched = rng.random() < 0.7
    if not is_batched:
        pairs[0] = 1

    def pair_shape():
        shape = [n if rng.random() < 0.7 else 1 for n in pairs]
        drop = next((i for i, n in enumerate(shape) if n != 1), 3) if rng.random() < 0.3 else 0
        return tuple(shape[drop:])

    batch = (B,) if is_batched else ()
    return {
        "q": (*batch, t, kv_heads * group, H),
        "kv": (*batch, s, kv_heads, H),
        "mask": pair_shape() if rng.random() < 0.5 else None,
        "bias": pair_shape() if rng.random() < 0.5 else None,
        "lengths": [n if rng.random() < 0.35 else None for n in (t, s)],
        "batch": pairs[0],
        "static": {
            "is_causal": number % 3 != 0,
            "local_window_size": (None, 2, (1, 0), None, (5, 1))[number % 5],
            "scale": (None, 0.5)[number % 2],
        },
    }


def draw_call(rng, spec, dtype):
    def normal(shape):
        return jnp.asarray(rng.standard_normal(shape), dtype)

    primals = {"query": normal(spec["q"]), "key": normal(spec["kv"]), "value": normal(spec["kv"])}
    if spec["bias"] is not None:
        primals["bias"] = normal(spec["bias"])
    rest = {}
    if spec["mask"] is not None:
        # Whole rows are hidden often.
        rest["mask"] = jnp.asarray(rng.random(spec["mask"]) < rng.choice([0.2, 0.7]))
    names = ("query_seq_lengths", "key_value_seq_lengths")
    for name, length in zip(names, spec["lengths"], strict=True):
        if length is not None:
            rest[name] = jnp.asarray(rng.integers(0, length + 2, spec["batch"]), jnp.int32)
    return primals, rest, normal(spec["q"])


def compared(static):
    """Outputs, residuals and gradients of both, compiled together."""

    def run(primals, rest, cotangent):
        def of(function):
            def loss(primals):
                out, residual = function(**primals, **rest, **static, return_residual=True)
                # The second term must leave no trace: no gradient flows through the residual.
                total = jnp.sum(out * cotangent) + jnp.sum(jnp.tanh(residual))
                return total, (out, residual)

            (_, results), gradients = jax.value_and_grad(loss, has_aux=True)(primals)
            return *results, gradients

        return of(dot_product_attention), of(jax.nn.dot_product_attention)

    return jax.jit(run)


def assert_same(got, want, tolerance):
    def check(a, b):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        a, b = (np.asarray(x, np.float32) for x in (a, b))
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance)

    jax.tree.map(check, got, want)


# These have every argument, each alignment of lengths, every window, and 16 bits.
KEPT = (1, 4, 6, 8, 15, 12, 7)


@pytest.mark.parametrize("number", chosen(range(SPECS), KEPT))
def test_random_calls_equal_those_of_jax(number):
    rng = np.random.default_rng(number)
    spec = draw_spec(number, rng)
    # JAX's own function has no float16 on a CPU.
    dtype, tolerance = (jnp.bfloat16, 0.06) if number == 4 else (jnp.float32, 2e-5)
    run = compared(spec["static"])
    for _ in range(CALLS):
        got, want = run(*draw_call(rng, spec, dtype))
        assert_same(got, want, tolerance)


@pytest.mark.parametrize(
    ("q", "kv", "arguments"),
    [
        ((0, 2, H), (3, 2, H), {}),
        ((2, 0, 4, H), (2, 3, 2, H), {"is_causal": True, "local_window_size": 1}),
        ((0, 4, 4, H), (0, 3, 2, H), {"key_value_seq_lengths": np.zeros(0, np.int32)}),
        ((2, 0, 2, H), (2, 0, 2, H), {"mask": np.ones((2, 1, 0, 0), bool)}),
        ((2, 5, 4, H), (2, 0, 2, H), {"is_causal": True}),
    ],
)
def test_no_rows_and_no_keys_are_what_they_are_in_jax(q, kv, arguments):
    q, kv = jnp.ones(q), jnp.ones(kv)
    bias = jnp.ones((1, 1, q.shape[-3], kv.shape[-3]))

    def of(function):
        def loss(*arrays):
            out, residual = function(*arrays, **arguments, return_residual=True)
            return jnp.sum(out), (out, residual)

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True))(q, kv, kv, bias)

    assert_same(of(dot_product_attention), of(jax.nn.dot_product_attention), 0.0)


def test_the_signature_is_that_of_jax():
    def parameters(function):
        found = inspect.signature(function).parameters.values()
        return [(p.name, p.kind, p.default) for p in found]

    assert parameters(dot_product_attention) == parameters(jax.nn.dot_product_attention)


def qkv(t=4, s=4, heads=2, dtype=jnp.float32, batch=2):
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.standard_normal((batch, n, heads, H)), dtype) for n in (t, s, s))


def test_a_traced_scale_has_a_gradient():
    q, k, v = qkv()

    def of(function):
        return jax.value_and_grad(lambda scale: jnp.sum(function(q, k, v, scale=scale) ** 2))

    run = jax.jit(lambda s: (of(dot_product_attention)(s), of(jax.nn.dot_product_attention)(s)))
    assert_same(*run(jnp.float32(0.7)), 1e-4)


def test_numpy_arrays_integer_biases_and_a_number_as_a_scale_are_taken():
    q, k, v = (np.asarray(x) for x in qkv())
    arguments = {"bias": np.arange(4)[None, None, None], "scale": np.float64(0.3)}
    got = dot_product_attention(q, k, v, **arguments)
    assert_same(got, jax.nn.dot_product_attention(q, k, v, **arguments), 1e-5)


@pytest.mark.parametrize(
    ("lengths", "arguments", "looked_up"),
    [
        ((4, 9), {"is_causal": True}, {"t": 4, "s": 4, "causal": 1}),
        ((9, 4), {"is_causal": True}, {"t": 9, "s": 4, "right": 5}),
        ((6, 6), {"is_causal": True, "local_window_size": (2, 3)}, {"causal": 1, "left": 2}),
        ((9, 4), {"local_window_size": (1, 0)}, {"t": 5, "s": 4, "left": 0, "right": 1}),
        ((4, 9), {"local_window_size": (2, 1)}, {"t": 4, "s": 5, "left": 3, "causal": 1}),
        ((6, 6), {"key_value_seq_lengths": np.array([3, 6])}, {"seg": 1, "len": 1}),
    ],
)
def test_the_alignment_needs_no_positions_and_no_dense_mask(lengths, arguments, looked_up):
    asked = []
    stop = attn_tune.add_listener(asked.append)
    try:
        jax.eval_shape(lambda *qkv: dot_product_attention(*qkv, **arguments), *qkv(*lengths))
    finally:
        stop()
    fields = dict(item.split("=") for item in asked[-1].signature.split()[1:])
    sizes = {"t": lengths[0], "s": lengths[1]}
    found = {name: int(fields[name]) for name in fields if name not in (*"bnkhv", "dtype")}
    assert found == sizes | looked_up


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": jnp.ones((1, 1, 4, 4))}, "got float32: give 'mask != 0' .*flax.attention_fn"),
        ({"mask": jnp.ones((1, 1, 4, 3), bool)}, r"mask has shape \(1, 1, 4, 3\)"),
        ({"bias": jnp.ones((1, 3, 4, 4))}, "bias has 3 heads"),
        ({"value": jnp.ones((2, 4, 2, 16))}, "key and value must have one shape"),
        ({"query": jnp.ones((1, 2, 4, 2, H))}, "query must have at most 4 axes"),
        ({"query": jnp.ones((2, 4, 3, H))}, "multiple of key/value heads"),
        ({"key_value_seq_lengths": jnp.ones((3,), jnp.int32)}, "key_value_seq_lengths must be"),
        ({"query_seq_lengths": jnp.ones((2,))}, "query_seq_lengths must be"),
        ({"local_window_size": (-1, 2)}, "local_window_size must be"),
        ({"scale": jnp.ones(2)}, "scale must be a number"),
        ({"implementation": "cuddn"}, "did you mean 'cudnn'"),
        ({"implementation": 3}, "implementation must be the name of a kernel, got 3"),
    ],
)
def test_malformed_arguments_are_named(change, message):
    q, k, v = qkv()
    with pytest.raises(UsageError, match=message):
        dot_product_attention(**{"query": q, "key": k, "value": v} | change)


@pytest.mark.parametrize(
    ("function", "name", "here"),
    [
        (
            attn_tune.flash_attention,
            "is_causal",
            r"'causal'; .* attn_tune\.dot_product_attention, which .* top",
        ),
        (attn_tune.flash_attention, "scale", "'softmax_scale'"),
        (
            dot_product_attention,
            "causal",
            r"'is_causal'; .* attn_tune\.flash_attention, which .* bottom",
        ),
    ],
)
def test_the_other_functions_name_is_refused_with_the_own_one(function, name, here):
    message = rf"{function.__name__}\(\) got an unexpected .* '{name}': here it is {here}"
    with pytest.raises(TypeError, match=message):
        function(*qkv(), **{name: True})
    assert name not in inspect.signature(function).parameters


def test_every_name_that_a_hint_gives_is_an_argument():
    of = {f: set(inspect.signature(f).parameters) for f in (attn_tune.flash_attention, dot_product_attention)}
    for function, other in zip(of, reversed(of), strict=True):
        hinted = 0
        for name in of[other] - of[function]:
            with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'") as info:
                function(*qkv(), **{name: None})
            _, hint, rest = str(info.value).partition("here it is '")
            hinted += bool(hint)
            assert not hint or rest.partition("'")[0] in of[function]
        assert hinted == 5


def test_an_implementation_is_used_or_refused():
    q, k, v = qkv()
    assert_same(
        dot_product_attention(q, k, v, implementation="xla"),
        jax.nn.dot_product_attention(q, k, v, implementation="xla"),
        1e-5,
    )
    with pytest.raises(UnsupportedError, match="cuDNN"):
        dot_product_attention(q, k, v, implementation="cudnn")


def test_the_precision_is_that_of_the_context():
    q, k, v = qkv()
    asked = []
    stop = attn_tune.add_listener(asked.append)
    try:
        for name, dtype, field in (
            ("float32", jnp.float32, " prec=highest"),
            ("float32", jnp.bfloat16, ""),
            ("tensorfloat32", jnp.float32, " prec=high"),
        ):
            with jax.default_matmul_precision(name):
                jax.eval_shape(dot_product_attention, *(x.astype(dtype) for x in (q, k, v)))
            assert asked[-1].signature.partition(f"dtype={jnp.dtype(dtype).name}")[2] == field
        with (
            jax.default_matmul_precision("BF16_BF16_F32_X3"),
            pytest.raises(UsageError, match=r"jax_default_matmul_precision must be .*X3"),
        ):
            dot_product_attention(q, k, v)
    finally:
        stop()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
def test_lengths_of_narrow_integers_are_those_of_wide_ones(dtype):
    q, k, v = (jnp.asarray(np.random.default_rng(i).standard_normal((2, 200, 1, 8)), jnp.float32) for i in range(3))
    wide, narrow = (jnp.array([100, 7], kind) for kind in (jnp.int32, dtype))
    got, want = (dot_product_attention(q, k, v, key_value_seq_lengths=lengths) for lengths in (narrow, wide))
    np.testing.assert_array_equal(got, want)
