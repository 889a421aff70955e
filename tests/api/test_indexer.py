"""The public ``indexer`` and ``indexer_topk``: ranges, selection by score, ties, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune.ops.contract import Output, OutputKind
from attn_tune.ops.tolerance import compare
from attn_tune.schema.errors import UsageError

B, T, S, N, H = 2, 7, 30, 4, 16


def arrays():
    keys = jax.random.split(jax.random.key(1), 3)
    shapes = ((B, T, N, H), (B, S, H), (B, T, N))
    return tuple(jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))


def scores_of(q, k, weights):
    products = np.einsum("btnh,bsh->btsn", *(np.asarray(x, np.float64) for x in (q, k)))
    return (np.maximum(products, 0) * np.asarray(weights, np.float64)[:, :, None]).sum(-1)


def test_scores_are_those_of_the_formula_and_of_packed_tokens():
    q, k, weights = arrays()
    found = attn_tune.indexer(q, k, weights, scale=0.5)
    np.testing.assert_allclose(found, 0.5 * scores_of(q, k, weights), atol=3e-5)
    starts, ends = jnp.arange(T), jnp.arange(T) + 9
    packed = attn_tune.indexer(q[0], k[0], weights[0], starts, ends, scale=0.5)
    token = np.arange(S)
    seen = (token >= starts[:, None]) & (token < ends[:, None])
    np.testing.assert_allclose(packed, np.where(seen, found[0], -np.inf), atol=1e-6)


def test_selected_keys_have_the_highest_scores_of_their_range():
    q, k, weights = arrays()
    # Keys that are equal have equal scores: any of them may be selected.
    k = k.at[:, 10:20].set(k[:, :10])
    ends = jnp.broadcast_to(S - T + 1 + jnp.arange(T), (B, T)).at[0, 2].set(5).at[1, 3].set(0)
    indices = attn_tune.indexer_topk(q, k, weights, ends=ends, topk=12)
    scores = np.where(np.arange(S) < np.asarray(ends)[..., None], scores_of(q, k, weights), -np.inf)
    order = np.argsort(-scores, axis=-1, kind="stable")[..., :12]
    right = {"top": jnp.where(jnp.asarray(np.take_along_axis(scores, order, -1)) == -jnp.inf, -1, order)}
    declared = Output(name="top", kind=OutputKind.INDEX, scores="scores")
    exact = right | {"scores": jnp.asarray(scores, jnp.float32)}
    (error,) = compare({"top": indices}, exact, right, [declared])
    assert error.ratio <= 1, error
    (worse,) = compare({"top": indices.at[1, 1, 0].set(int(np.argmin(scores[1, 1, :20])))}, exact, right, [declared])
    assert worse.ratio > 1, worse
    np.testing.assert_array_equal(np.sum(np.asarray(indices) < 0, -1)[[0, 1], [2, 3]], [7, 12])


def test_more_than_all_keys_are_filled_up_and_approximate_ones_are_keys():
    q, k, weights = arrays()
    every = np.asarray(attn_tune.indexer_topk(q, k, weights, topk=S + 3))
    np.testing.assert_array_equal(np.sort(every, -1), np.broadcast_to(np.r_[[-1] * 3, :S], every.shape))
    some = np.asarray(attn_tune.indexer_topk(q, k, weights, topk=5, recall=0.9))
    assert ((some >= 0) & (some < S)).all()
    assert all(len(set(row)) == 5 for row in some.reshape(-1, 5).tolist())


def test_what_the_indexer_selects_is_what_sparse_mla_attends_to():
    q, k, weights = arrays()
    latents = jax.random.normal(jax.random.key(8), (B, S, 24))
    query = jax.random.normal(jax.random.key(9), (B, T, 3, 24))
    indices = attn_tune.indexer_topk(q, k, weights, topk=6)
    out = attn_tune.sparse_mla(query[..., :16], query[..., 16:], latents, indices, softmax_scale=0.2)
    chosen = np.argsort(-scores_of(q, k, weights), -1)[..., :6]
    keys = np.stack([np.asarray(latents)[b][chosen[b]] for b in range(B)])
    logits = np.einsum("btnh,btsh->btns", query, keys) * 0.2
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(out, np.einsum("btns,btsv->btnv", shares, keys[..., :16]), atol=5e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query": jnp.zeros((T, H))}, r"query must be \[B, T, HI, DI\] or"),
        ({"key": jnp.zeros((B, S, H + 1))}, r"key must be \[2, S, 16\] beside query"),
        ({"key": jnp.zeros((B, S, H), jnp.bfloat16)}, "key must be float32 as the query"),
        ({"weights": jnp.zeros((B, T))}, r"weights must be numbers \[2, 7, 4\]"),
        ({"ends": jnp.zeros((T,), jnp.int32)}, r"ends must be integers \[2, 7\] beside query"),
        ({"topk": 0}, "topk must be a positive integer, got 0"),
        ({"scale": 0.0}, "scale must be above 0 to select the highest scores, got 0.0"),
        ({"scale": -0.5}, "scale must be above 0 to select the highest scores, got -0.5"),
        ({"scale": 1e-60}, "scale must be above 0"),
        ({"scale": float("nan")}, "scale must be finite, got nan"),
        ({"scale": None}, "scale must be a number, got None"),
        ({"recall": 1.5}, "recall must be above 0 and at most 1"),
        ({"recall": None}, "recall must be a number, got None"),
    ],
)
def test_a_malformed_argument_of_the_indexer_is_named(change, words):
    given = dict(zip(("query", "key", "weights"), arrays(), strict=True)) | {"topk": 4}
    with pytest.raises(UsageError, match=words):
        attn_tune.indexer_topk(**(given | change))
