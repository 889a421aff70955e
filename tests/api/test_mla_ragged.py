"""The public ``mla_ragged``: rows, forms of its arrays, and refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune.ops.ragged_paged.features import samples
from attn_tune.ops.ragged_paged.inputs import make_inputs
from attn_tune.schema.errors import UnsupportedError, UsageError
from tests.api.latent_cases import latent_arguments
from tests.chosen import chosen
from tests.kernels.ragged_paged.dense_numpy import assert_right


@functools.cache
def case(name):
    problem = samples()[name]
    return problem, jax.jit(functools.partial(make_inputs, problem, "fwd"))(1)


def call(problem, operands, **more):
    own = {"cu_q_lens": operands.cu_q_lens, "causal": problem.causal}
    return attn_tune.mla_ragged(**latent_arguments(problem, operands) | own | more)


@pytest.mark.parametrize(
    "name",
    chosen(
        ["latent_contiguous", "latent_mixed", "latent_float32", "latent_float8", "latent_everything"],
        ["latent_contiguous", "latent_everything"],
    ),
)
def test_rows_of_mla_ragged_are_right(name):
    problem, operands = case(name)
    out, lse = jax.jit(functools.partial(call, problem))(operands)
    assert_right(problem, operands, {"out": out, "lse": lse})


def test_mla_ragged_of_one_new_token_each_is_mla_decode():
    problem, operands = case("latent")
    o, width, batch = operands, problem.v_head_dim, operands.kv_lens.shape[0]
    q = jnp.nan_to_num(o.q[:batch])
    ends = jnp.arange(batch + 1, dtype=jnp.int32)
    found = call(problem, o._replace(q=q, cu_q_lens=ends), latent_pages=o.k)
    options = {"softmax_scale": problem.scale, "return_lse": True}
    expected = attn_tune.mla_decode(q[..., :width], q[..., width:], o.k, o.kv_lens, o.page_table, **options)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, np.asarray(other), rtol=2e-2, atol=2e-2)


def test_sequences_of_mla_ragged_from_num_seqs_on_are_empty():
    problem, operands = case("latent_mixed")
    out, lse = jax.jit(lambda n: call(problem, operands, num_seqs=n))(2)
    end = int(operands.cu_q_lens[2])
    np.testing.assert_array_equal(out[:end], call(problem, operands)[0][:end])
    assert not np.asarray(out[end:], np.float32).any()
    assert np.isneginf(lse[end:]).all()


def test_a_derivative_of_mla_ragged_is_refused():
    problem, operands = case("latent_mixed")
    with pytest.raises(UnsupportedError, match="attention over a cache has no derivative"):
        jax.grad(lambda q: call(problem, operands._replace(q=q))[0].astype(jnp.float32).sum())(operands.q)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"softmax_scale": None}, "softmax_scale is None: give that of the model"),
        ({"q_latent": jnp.zeros((60, 1, 6, 32), jnp.bfloat16)}, r"q_latent must be \[tokens, N, L\], got"),
        ({"q_rope": jnp.zeros((60, 6, 8), jnp.bfloat16)}, r"latent_pages must be \[pages, P, 40\]"),
        ({"causal": False, "sliding_window": 4}, "sliding_window=4 counts from a query's own position"),
        ({"cu_q_lens": jnp.zeros(3, jnp.int32)}, "cu_q_lens must"),
        ({"page_table": None}, "a cache in pages needs page_table"),
    ],
)
def test_malformed_arguments_of_mla_ragged_are_refused_by_name(change, words):
    problem, operands = case("latent")
    with pytest.raises(UsageError, match=words):
        call(problem, operands, **change)
