"""The public ``mla_decode``: rows, forms of its arrays, and refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune.ops.paged_decode.features import samples
from attn_tune.ops.paged_decode.inputs import make_inputs
from attn_tune.schema.errors import UnsupportedError, UsageError
from tests.api.latent_cases import latent_arguments
from tests.chosen import chosen
from tests.kernels.paged_decode.dense_numpy import assert_right


@functools.cache
def case(name):
    problem = samples()[name]
    return problem, jax.jit(functools.partial(make_inputs, problem, "fwd"))(1)


def call(problem, operands, **more):
    return attn_tune.mla_decode(**latent_arguments(problem, operands) | more)


@pytest.mark.parametrize(
    "name",
    chosen(
        ["latent", "latent_contiguous", "latent_float8", "latent_everything"],
        ["latent_contiguous", "latent_everything"],
    ),
)
def test_rows_are_right(name):
    problem, operands = case(name)
    out, lse = jax.jit(functools.partial(call, problem))(operands)
    assert_right(problem, operands, {"out": out, "lse": lse})


def test_a_token_and_a_key_head_may_lack_their_axes():
    problem, operands = case("latent")
    whole, whole_lse = call(problem, operands)
    out, lse = call(problem, operands._replace(q=operands.q[:, 0]), latent_pages=operands.k)
    np.testing.assert_array_equal(out, whole[:, 0])
    np.testing.assert_array_equal(lse, whole_lse[:, 0])


def test_it_is_decoding_with_values_in_the_keys():
    problem, operands = case("latent_float32")
    o, width = operands, problem.v_head_dim
    apart = attn_tune.paged_decode(
        o.q, o.k, o.k[..., :width], o.kv_lens, o.page_table, softmax_scale=problem.scale, return_lse=True
    )
    for found, expected in zip(call(problem, operands), apart, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_sequences_from_num_seqs_on_are_empty():
    problem, operands = case("latent")
    out, lse = jax.jit(lambda n: call(problem, operands, num_seqs=n))(2)
    np.testing.assert_array_equal(out[:2], call(problem, operands)[0][:2])
    assert not np.asarray(out[2:], np.float32).any()
    assert np.isneginf(lse[2:]).all()


def test_a_derivative_is_refused():
    problem, operands = case("latent")
    with pytest.raises(UnsupportedError, match="decoding has no derivative"):
        jax.grad(lambda q: call(problem, operands._replace(q=q))[0].astype(jnp.float32).sum())(operands.q)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"softmax_scale": None}, "softmax_scale is None: give that of the model"),
        ({"q_latent": jnp.zeros((6, 32), jnp.bfloat16)}, r"q_latent must be \[B, N, L\]"),
        ({"q_rope": jnp.zeros((6, 1, 5, 16), jnp.bfloat16)}, "q_latent and q_rope must agree"),
        ({"q_rope": jnp.zeros((10, 1, 6, 8), jnp.bfloat16)}, r"latent_pages must be \[pages, P, 40\]"),
        ({"latent_pages": jnp.zeros((6, 8, 2, 48), jnp.bfloat16)}, r"got shape \(6, 8, 2, 48\)"),
        ({"latent_pages": jnp.zeros((10, 8, 48), jnp.float32)}, "latent_pages must be bfloat16 as q_latent"),
        ({"kv_scale": 1.0}, "kv_scale belongs to latent_pages of float8_e4m3fn or int8"),
        ({"latent_pages": jnp.zeros((63, 8, 48), jnp.int8)}, "kv_scale is missing"),
        ({"latent_pages": jnp.zeros((63, 8, 48), jnp.int8), "kv_scale": jnp.ones(3)}, r"one number or \[63, 8\]"),
        ({"page_table": None}, "a cache in pages needs page_table"),
        ({"latent_pages": 3.5}, r"latent_pages must be \[pages, P, 48\].*got shape \(\)"),
        ({"q_latent": jnp.zeros((6, 1, 6, 32), jnp.int32)}, "q_latent must have dtype"),
        (
            {"q_latent": jnp.zeros((6, 9, 6, 32), jnp.bfloat16), "q_rope": jnp.zeros((6, 9, 6, 16), jnp.bfloat16)},
            "q_latent has 9 new tokens of a sequence; at most 8 are decoding",
        ),
    ],
)
def test_malformed_arguments_are_refused_by_name(change, words):
    problem, operands = case("latent")
    with pytest.raises(UsageError, match=words):
        call(problem, operands, **change)


def test_the_layout_needs_its_own_call():
    _, o = case("latent")
    with pytest.raises(UsageError, match="unknown layout 'latent'"):
        attn_tune.paged_decode(o.q, o.k, None, o.kv_lens, o.page_table, layout="latent")
