"""Small random calls by ejkernel's names, each with its result in numpy.

A call is ``(arguments, keywords, expected)``; ``expected`` is an array or a tuple of them.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

type Made = tuple[tuple[Any, ...], dict[str, Any], Any]

B, T, S, N, K, H, P = 2, 6, 10, 4, 2, 16, 4
LENS = np.array([9, 5], np.int32)
TABLE = np.array([[3, 0, 5], [1, 4, 2]], np.int32)
PAGES = 6
STARTS = np.array([0, 4, 5], np.int32)  # a chunk of four tokens, then one that decodes
CALLS: dict[str, Callable[[np.random.Generator], Made]] = {}


def call(make: Callable[[np.random.Generator], Made]) -> Callable[[np.random.Generator], Made]:
    """Add the call ``make``, whose name is that of the function, two underscores and what is special."""
    CALLS[make.__name__] = make
    return make


def attend(q, k, v, *, mask=None, scale=None, cap=None, sinks=None, bias=None):
    """``(out, lse)`` of one sequence, ``[T, N, H]`` and ``[S, K, H]``.

    ``mask`` and ``bias`` broadcast to ``[N, T, S]``, ``sinks`` are ``[N, sinks]``. Rows that see nothing are zeros.
    """
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    x = np.einsum("tnh,snh->nts", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    x = x if cap is None else cap * np.tanh(x / cap)
    x = x if bias is None else x + bias
    x = np.exp(x if mask is None else np.where(mask, x, -np.inf))
    total = x.sum(-1) + (0 if sinks is None else np.exp(sinks).sum(-1)[:, None])
    out = np.einsum("nts,snv->tnv", x / np.where(total > 0, total, 1)[..., None], v)
    with np.errstate(divide="ignore"):
        return out, np.log(total).T


def causal(rows, columns, *, offset=None, left=None):
    """Pairs that see each other: at the bottom right, or row 0 at ``offset``; ``left`` tokens before the own."""
    at = np.arange(rows)[:, None] + (columns - rows if offset is None else offset)
    other = np.arange(columns)
    seen = other <= at
    return seen if left is None else seen & (other >= at - left)


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def batch(function, *arrays):
    return np.stack([function(*one)[0] for one in zip(*arrays, strict=True)])


def dense(rng, q_len=T, kv_len=T):
    return floats(rng, B, q_len, N, H), floats(rng, B, kv_len, K, H), floats(rng, B, kv_len, K, H)


@call
def flash_attention__sinks_window_cap(rng):
    q, k, v = dense(rng)
    sinks = floats(rng, N)  # as many as heads, and yet of all heads
    keywords = {"causal": True, "sliding_window": (2, 0), "logits_soft_cap": 2.0, "softmax_scale": 0.3}
    many = {"mask": causal(T, T, left=2), "cap": 2.0, "scale": 0.3, "sinks": np.tile(sinks, (N, 1))}
    return (q, k, v, None, None, None, sinks), keywords, batch(lambda *x: attend(*x, **many), q, k, v)


@call
def flash_attention__causal_bias(rng):
    q, k, v = dense(rng)
    bias = floats(rng, B, N, T, T)
    out = batch(lambda q, k, v, b: attend(q, k, v, mask=causal(T, T), bias=b), q, k, v, bias)
    return (q, k, v, bias), {"causal": True}, out


@call
def attention__top_left(rng):
    q, k, v = dense(rng, kv_len=S)
    sinks = floats(rng, K)
    many = {"mask": causal(T, S, offset=0), "sinks": sinks.repeat(N // K)[:, None]}
    weights = []
    for one in zip(q, k, v, strict=True):
        values = np.tile(np.eye(S, dtype=np.float32)[:, None], (1, K, 1))
        weights.append(attend(one[0], one[1], values, **many)[0].swapaxes(0, 1))
    out = batch(lambda *x: attend(*x, **many), q, k, v)
    return (q, k, v, None, None, sinks), {"causal": True, "dtype": jnp.float32}, (out, np.stack(weights))


@call
def scaled_dot_product_attention__lengths(rng):
    q, k, v = dense(rng, kv_len=S)
    mask = causal(T, S, offset=0) & (np.arange(S) < LENS[:, None, None])
    out = batch(lambda q, k, v, m: attend(q, k, v, mask=m), q, k, v, mask)
    return (q, k, v, None, np.array([T, T], np.int32), LENS), {"causal": True}, out


@call
def flash_mla__rotary(rng):
    latent, rotary = 8, 4
    q, kv = floats(rng, B, T, N, H), floats(rng, B, T, latent)
    w_kc, w_vc = floats(rng, latent, K, H), floats(rng, latent, K, 8)
    b_q, b_k = floats(rng, B, T, rotary), floats(rng, B, T, rotary)
    k, v = (np.einsum("btl,lkh->btkh", kv, w) for w in (w_kc, w_vc))
    whole_k = np.concatenate([k, np.broadcast_to(b_k[:, :, None], (B, T, K, rotary))], axis=-1)
    whole_q = np.concatenate([q, np.broadcast_to(b_q[:, :, None], (B, T, N, rotary))], axis=-1)
    out = batch(lambda *x: attend(*x, mask=causal(T, T)), whole_q, whole_k, v)
    return (q, kv, w_kc, w_vc, b_q, b_k), {"causal": True}, out


def ragged_decode(rng, starts, window=None):
    q, k, v = dense(rng, q_len=1, kv_len=S)
    at = np.arange(S)
    mask = (at >= starts[:, None]) & (at < LENS[:, None])
    if window is not None:
        mask &= at >= LENS[:, None] - 1 - window
    sinks = floats(rng, N)
    out = batch(lambda q, k, v, m: attend(q, k, v, mask=m, sinks=sinks[:, None]), q, k, v, mask)
    keywords = {} if window is None else {"sliding_window": (window, 0)}
    return (q[:, 0], k, v, starts, LENS, sinks[:, None]), keywords, out[:, 0]


@call
def ragged_decode_attention__from_zero(rng):
    return ragged_decode(rng, np.zeros(B, np.int32))


@call
def ragged_decode_attention__from_starts(rng):
    return ragged_decode(rng, np.array([2, 1], np.int32), window=3)


def in_pages(rng, layout="nhd"):
    """``(pages of keys, of values, keys, values)``, the last two ``[B, tokens, K, H]`` by the table."""
    k, v = floats(rng, PAGES, P, K, H), floats(rng, PAGES, P, K, H)
    by_token = (x[TABLE].reshape(B, -1, K, H) for x in (k, v))
    axes = {"nhd": (0, 1, 2, 3), "hnd": (0, 2, 1, 3), "head_first": (2, 0, 1, 3)}[layout]
    return k.transpose(axes), v.transpose(axes), *by_token


def ragged(q, k, v, left=None, **options):
    """Sequences of ``STARTS`` one after the other over ``k`` and ``v`` ``[B, tokens, K, H]``."""
    out = np.zeros((*q.shape[:2], v.shape[-1]), np.float32)
    for i, length in enumerate(LENS):
        rows = slice(STARTS[i], STARTS[i + 1])
        mask = causal(rows.stop - rows.start, length, left=left)
        out[rows] = attend(q[rows], k[i, :length], v[i, :length], mask=mask, **options)[0]
    return out


@call
def page_attention__hnd(rng):
    k_pages, v_pages, k, v = in_pages(rng, "hnd")
    q = floats(rng, B, 1, N, H)
    mask = np.arange(k.shape[1]) < LENS[:, None]
    out = batch(lambda q, k, v, m: attend(q, k, v, mask=m), q, k, v, mask)
    return (q[:, 0], k_pages, v_pages, LENS, TABLE), {}, out[:, 0]


@call
def prefill_page_attention__window(rng):
    k_pages, v_pages, k, v = in_pages(rng, "head_first")
    q = floats(rng, 4, N, H)
    out = attend(q, k[0, :9], v[0, :9], mask=causal(4, 9, left=2), cap=3.0)[0]
    keywords = {"sliding_window": 3, "attn_logits_soft_cap": 3.0}
    return (q, k_pages, v_pages, LENS[:1], TABLE[0]), keywords, out


@call
def ragged_page_attention_v2__sinks(rng):
    k_pages, v_pages, k, v = in_pages(rng)
    q, sinks = floats(rng, 5, N, H), floats(rng, N)
    pages = np.stack([k_pages, v_pages], axis=3).reshape(PAGES, P, 2 * K, H)
    keywords = {"compute_dtype": jnp.float32, "sliding_window": 3}
    out = ragged(q, k, v, left=2, sinks=sinks[:, None])
    return (q, pages, LENS, TABLE, STARTS, np.array([B], np.int32), sinks), keywords, out


@call
def unified_attention__window(rng):
    k_pages, v_pages, k, v = in_pages(rng)
    q, sinks = floats(rng, 5, N, H), floats(rng, N)
    keywords = {"sliding_window": 3, "logits_soft_cap": 3.0}
    out = ragged(q, k, v, left=2, cap=3.0, sinks=sinks[:, None])
    return (q, k_pages, v_pages, LENS, TABLE, STARTS, None, None, sinks), keywords, out


def written(pages, new):
    """``pages`` ``[pages, P, ...]`` with the tokens ``new`` of ``STARTS`` at the ends of the sequences."""
    pages = pages.copy()
    for i, length in enumerate(LENS):
        for token in range(STARTS[i], STARTS[i + 1]):
            at = length - STARTS[i + 1] + token
            pages[TABLE[i, at // P], at % P] = new[token]
    return pages


@call
def chunked_prefill_paged_decode__causal(rng):
    k_pages, v_pages, *_ = in_pages(rng)
    q, new_k, new_v = floats(rng, 5, N, H), floats(rng, 5, K, H), floats(rng, 5, K, H)
    after = [written(pages, new) for pages, new in ((k_pages, new_k), (v_pages, new_v))]
    out = ragged(q, *(x[TABLE].reshape(B, -1, K, H) for x in after))
    return (q, new_k, new_v, k_pages, v_pages, LENS, TABLE, STARTS), {}, (out, *after)


@call
def decode_attention__pool(rng):
    k_pages, v_pages, k, v = in_pages(rng)
    q = floats(rng, B, N, H)
    made = [attend(q[i][None], k[i, :n], v[i, :n]) for i, n in enumerate(LENS)]
    out, lse = (np.stack([x[i][0] for x in made]) for i in (0, 1))
    pools = (x.reshape(-1, K, H) for x in (k_pages, v_pages))
    return (q, *pools, TABLE, LENS), {"page_size": P}, (out, lse)


@call
def ragged_page_attention_v3__padded(rng):
    k_pages, v_pages, *_ = in_pages(rng)
    q, new_k, new_v, sinks = floats(rng, 5, N, H), floats(rng, 5, K, H), floats(rng, 5, K, H), floats(rng, N)
    after = [written(pages, new) for pages, new in ((k_pages, new_k), (v_pages, new_v))]
    out = ragged(q, *(x[TABLE].reshape(B, -1, K, H) for x in after), scale=0.25, sinks=sinks[:, None])
    caches = []
    for pair in ((k_pages, v_pages), after):
        joined = np.stack(pair, axis=3).reshape(PAGES, P, 2 * K, 1, H)
        caches.append(np.pad(joined, ((0, 0),) * 4 + ((0, 128 - H),)))
    distribution = np.array([0, 0, B], np.int32)
    arguments = (q, new_k, new_v, caches[0], LENS, TABLE.ravel(), STARTS, distribution, sinks)
    return arguments, {"softmax_scale": 0.25}, (out, caches[1])


@call
def multi_latent_ragged_page_attention__mixed(rng):
    latent, rotary = 24, 8
    cache = np.zeros((PAGES, P, 256), np.float32)
    cache[..., :latent], cache[..., 128 : 128 + rotary] = (floats(rng, PAGES, P, n) for n in (latent, rotary))
    q_nope, q_pe = floats(rng, 5, N, latent), floats(rng, 5, N, rotary)
    new, new_pe = floats(rng, 5, latent), floats(rng, 5, rotary)
    row = np.zeros((5, 256), np.float32)
    row[:, :latent], row[:, 128 : 128 + rotary] = new, new_pe
    after = written(cache, row)
    tokens = after[TABLE].reshape(B, -1, 1, 256)
    k = np.concatenate([tokens[..., :latent], tokens[..., 128 : 128 + rotary]], axis=-1)
    out = ragged(np.concatenate([q_nope, q_pe], -1), k, k[..., :latent], left=4, scale=0.2)
    distribution = np.array([0, 0, B], np.int32)
    packed = (cache.reshape(PAGES, P, 1, 256), after.reshape(PAGES, P, 1, 256))
    arguments = (q_nope, q_pe, new, new_pe, packed[0], LENS, TABLE.ravel(), STARTS, distribution)
    return arguments, {"softmax_scale": 0.2, "sliding_window": 5}, (out, packed[1])


@call
def blocksparse_attention__window(rng):
    q, k, v = dense(rng, kv_len=S)
    out = batch(lambda *x: attend(*x, mask=causal(T, S, offset=0, left=3)), q, k, v)
    arrays = (x.swapaxes(1, 2) for x in (q, k, v))
    return tuple(arrays), {"sliding_window": (3, 3)}, out.swapaxes(1, 2)


@call
def deepseek_attn__causal(rng):
    latent, rotary, top = 16, 16, 3
    q, kv, b_k = floats(rng, B, T, N, H + rotary), floats(rng, B, T, latent), floats(rng, B, T, rotary)
    w_kc, w_vc = floats(rng, latent, K, H), floats(rng, latent, K, H)
    index = floats(rng, B, T, 2, H), floats(rng, B, T, H), floats(rng, B, T, 2)
    scores = np.einsum("btis,bti->bts", np.maximum(np.einsum("btih,bsh->btis", *index[:2]), 0), index[2])
    scores = np.where(causal(T, T), scores, -np.inf)
    chosen = np.zeros((B, T, T), bool)
    np.put_along_axis(chosen, np.argsort(-scores, axis=-1)[..., :top], True, axis=-1)
    chosen = (chosen | np.eye(T, dtype=bool)) & causal(T, T)
    k, v = (np.einsum("btl,lkh->btkh", kv, w) for w in (w_kc, w_vc))
    k = np.concatenate([k, np.broadcast_to(b_k[:, :, None], (B, T, K, rotary))], axis=-1)
    out = batch(lambda q, k, v, m: attend(q, k, v, mask=m), q, k, v, chosen)
    return (q, kv, w_kc, w_vc, *index, None, b_k), {"index_topk": top}, out


LONG, BLOCK = 150, 64


def blocks(chosen):
    """The pairs of ``chosen`` ``[LONG, K, blocks]`` booleans as a causal mask ``[N, LONG, LONG]``."""
    mask = chosen.swapaxes(0, 1).repeat(BLOCK, axis=2)[..., :LONG].repeat(N // K, axis=0)
    return mask & causal(LONG, LONG)


@call
def native_sparse_attention__indices(rng):
    q, k, v = floats(rng, 1, LONG, N, H), floats(rng, 1, LONG, K, H), floats(rng, 1, LONG, K, H)
    own = np.arange(LONG) // BLOCK
    indices = np.stack([own, np.zeros(LONG, int), np.full(LONG, -1)], axis=-1)[:, None].repeat(K, axis=1)
    indices[:BLOCK, :, 1] = -1  # not the own block twice
    chosen = (indices[..., None] == np.arange(3)).any(axis=2)
    gate = rng.uniform(0, 1, (1, LONG, N)).astype(np.float32)
    out = attend(q[0], k[0], v[0], mask=blocks(chosen))[0] * gate[0, ..., None]
    return (q, k, v, None, gate, indices[None].astype(np.int32)), {}, out[None]


@call
def native_sparse_attention__compressed(rng):
    q, k, v = floats(rng, 1, LONG, N, H), floats(rng, 1, LONG, K, H), floats(rng, 1, LONG, K, H)
    gate = rng.uniform(0, 1, (1, LONG, N)).astype(np.float32)
    means = [x[0, :128].reshape(2, BLOCK, K, H).mean(axis=1) for x in (k, v)]
    at = np.arange(LONG)[:, None]
    ended = (np.arange(2) + 1) * BLOCK <= at + 1
    compressed = attend(q[0], *means, mask=ended)[0]
    weights = attend(q[0], means[0], np.tile(np.eye(2, dtype=np.float32)[:, None], (1, K, 1)), mask=ended)[0]
    scores = np.pad(weights.reshape(LONG, K, N // K, 2).sum(axis=2), ((0, 0), (0, 0), (0, 1)))
    own = (at // BLOCK == np.arange(3))[:, None]
    scores = np.where(own, np.inf, np.where((np.arange(3) * BLOCK <= at)[:, None], scores, -np.inf))
    chosen = np.zeros(scores.shape, bool)
    np.put_along_axis(chosen, np.argsort(-scores, axis=-1)[..., :2], True, axis=-1)
    out = attend(q[0], k[0], v[0], mask=blocks(chosen))[0] + compressed * gate[0, ..., None]
    return (q, k, v, gate, None, None, 2), {}, out[None]
