"""The public ``sparse_mla``: against dense attention, pages of a pool, decoding, sinks, meshes, and refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune.schema.errors import UnsupportedError, UsageError
from tests.several_devices import run_with_devices

B, T, S, N, L, R = 2, 6, 20, 4, 16, 8
SCALE = 0.2


def arrays(*, batch=B, queries=T, tokens=S, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(3), 3)
    q = jax.random.normal(keys[0], (batch, queries, N, L + R), dtype)
    return q[..., :L], q[..., L:], jax.random.normal(keys[1], (batch, tokens, L + R), dtype)


def every_key(queries=T, tokens=S):
    """The indices of causal attention, the last query at the last key; descending, behind those that name nothing."""
    token = jnp.arange(tokens - 1, -1, -1)
    seen = token <= (tokens - queries + jnp.arange(queries))[:, None]
    return jnp.broadcast_to(jnp.where(seen, token, -1), (B, queries, tokens))


def test_all_indices_of_a_causal_call_are_dense_attention():
    q, rope, kv = arrays()
    out, lse = attn_tune.sparse_mla(q, rope, kv, every_key(), softmax_scale=SCALE, return_lse=True)
    query, key = jnp.concatenate([q, rope], -1), kv[:, :, None]
    dense, log = attn_tune.flash_attention(
        query, key, key[..., :L], causal=True, softmax_scale=SCALE, return_lse=True, platform="xla"
    )
    np.testing.assert_allclose(out, dense, atol=2e-6)
    np.testing.assert_allclose(lse, log.swapaxes(1, 2), atol=2e-6)


def test_pages_of_a_pool_are_latent_decoding():
    # Two new tokens of each sequence; pages of the pool lie in any order, and no page is the first sequence's second.
    page, lengths = 4, jnp.array([4, 11], jnp.int32)
    table = jnp.array([[5, 99, -1], [2, 0, 3]], jnp.int32)
    q, rope, _ = arrays(queries=2)
    pool = jax.random.normal(jax.random.key(9), (6, page, L + R)).at[jnp.array([1, 4])].set(jnp.nan)
    token = jnp.arange(12)
    position = lengths[:, None] - 2 + jnp.arange(2)
    places = jnp.take_along_axis(table, jnp.broadcast_to(token // page, (2, 12)), axis=1) * page + token % page
    indices = jnp.where(token <= position[..., None], places[:, None], -1)
    decoded, log = attn_tune.mla_decode(q, rope, pool, lengths, table, softmax_scale=SCALE, return_lse=True)

    def flat(x):
        return x.reshape(4, *x.shape[2:])

    out, lse = attn_tune.sparse_mla(
        flat(q), flat(rope), pool, flat(indices), softmax_scale=SCALE, workload="any", return_lse=True
    )
    np.testing.assert_allclose(out, flat(decoded), atol=2e-6)
    np.testing.assert_allclose(lse, flat(log), atol=2e-6)
    one = attn_tune.sparse_mla(flat(q), flat(rope), pool.reshape(24, -1), flat(indices), softmax_scale=SCALE)
    np.testing.assert_array_equal(one, out)


def test_a_key_that_is_named_twice_counts_twice_and_nothing_is_zero():
    q, rope, kv = arrays()
    rows = jnp.full((B, T, 4), -1).at[:, 0, :2].set(3).at[:, 1].set(jnp.array([7, -5, S, 2**31 - 1]))
    out, lse = attn_tune.sparse_mla(q, rope, kv.at[:, 8:].set(jnp.nan), rows, softmax_scale=SCALE, return_lse=True)
    logit = jnp.einsum("bnh,bh->bn", jnp.concatenate([q, rope], -1)[:, 0], kv[:, 3]) * SCALE
    np.testing.assert_allclose(lse[:, 0], logit + np.log(2), atol=2e-6)
    np.testing.assert_allclose(out[:, :2], jnp.broadcast_to(kv[:, [3, 7], None, :L], (B, 2, N, L)), atol=2e-6)
    assert not np.asarray(out[:, 2:]).any()
    assert np.isneginf(lse[:, 2:]).all()


@pytest.mark.parametrize("nothing", [np.int64(2**33 + 1), np.int64(-(2**33) + 1), np.uint64(2**40)])
def test_indices_of_64_bits_beyond_all_tokens_name_nothing(nothing):
    indices = np.array(every_key())
    some = functools.partial(attn_tune.sparse_mla, *arrays(), softmax_scale=SCALE)
    wide = np.where(indices < 0, nothing, indices.astype(nothing.dtype))
    np.testing.assert_array_equal(some(wide), some(indices))


def test_a_sink_joins_the_softmax_and_the_lse_of_sparse_mla():
    q, rope, kv = arrays()
    rows = every_key().at[:, 1].set(-1)
    sinks = jnp.array([-jnp.inf, 0.0, 1.5, -2.0])
    plain, log = attn_tune.sparse_mla(q, rope, kv, rows, softmax_scale=SCALE, return_lse=True)
    out, lse = attn_tune.sparse_mla(q, rope, kv, rows, softmax_scale=SCALE, softmax_aux=sinks, return_lse=True)
    np.testing.assert_allclose(lse, jnp.logaddexp(log, sinks), atol=2e-6)
    share = jnp.exp(log - jnp.where(jnp.isneginf(lse), 0, lse))
    np.testing.assert_allclose(out, plain * share[..., None], atol=2e-6)


def test_vmap_of_sparse_mla_folds_into_the_batch():
    q, rope, kv = arrays()
    rows = every_key()

    def call(*given):
        return attn_tune.sparse_mla(*given, softmax_scale=SCALE)

    folded = jax.vmap(call)(*(x[:, None] for x in (q, rope, kv, rows)))
    np.testing.assert_allclose(folded[:, 0], call(q, rope, kv, rows), atol=1e-6)


@pytest.mark.slow
def test_sharded_sparse_attention_is_not_gathered():
    printed = run_with_devices(4, "-m", "tests.api.sparse_sharded")
    assert printed.split() == ["batch", "queries", "heads", "indexer", "blocks"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q_latent": jnp.zeros((3, L))}, r"q_latent must be \[B, T, N, L\] or"),
        ({"q_rope": jnp.zeros((B, T, N, R), jnp.bfloat16)}, "q_latent and q_rope must agree in dtype"),
        ({"latents": jnp.zeros((B, S, L))}, r"latents must be \[2, S, 24\]"),
        ({"latents": jnp.zeros((B, S, L + R), jnp.bfloat16)}, "latents must be float32 as q_latent"),
        ({"indices": jnp.zeros((B, T + 1, 3), jnp.int32)}, r"indices must be integers \[2, 6, 3\] beside q_latent"),
        ({"indices": jnp.zeros((B, T, 3))}, "indices must be integers"),
        ({"softmax_scale": None}, "softmax_scale is None"),
        ({"workload": "eq"}, "unknown workload 'eq'"),
    ],
)
def test_a_malformed_argument_of_sparse_mla_is_named(change, words):
    q, rope, kv = arrays()
    given = {"q_latent": q, "q_rope": rope, "latents": kv, "indices": every_key(), "softmax_scale": SCALE}
    with pytest.raises(UsageError, match=words):
        attn_tune.sparse_mla(**(given | change))


def test_a_derivative_of_sparse_mla_is_refused():
    q, rope, kv = arrays()
    with pytest.raises(UnsupportedError, match="has no derivative"):
        jax.grad(lambda q: attn_tune.sparse_mla(q, rope, kv, every_key(), softmax_scale=SCALE).sum())(q)
