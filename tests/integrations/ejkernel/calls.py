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
def flash_attention__bias(rng):
    q, k, v = dense(rng)
    bias = floats(rng, B, N, T, T)
    return (q, k, v, bias), {}, batch(lambda q, k, v, b: attend(q, k, v, bias=b), q, k, v, bias)


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


def recur(q, k, v, *, decay=None, beta=None, state=None, scale=None):
    """``(out, state)`` of one sequence: ``decay`` [T, N, H] or [T, N, 1]; with ``beta`` [T, N] the delta rule."""
    state = np.zeros((q.shape[1], q.shape[2], v.shape[2])) if state is None else state
    out = []
    for t in range(len(q)):
        state = state if decay is None else state * np.exp(decay[t])[..., None]
        new = v[t] if beta is None else (v[t] - np.einsum("nhv,nh->nv", state, k[t])) * beta[t][:, None]
        state = state + np.einsum("nh,nv->nhv", k[t], new)
        out.append(np.einsum("nhv,nh->nv", state, q[t]) * (q.shape[-1] ** -0.5 if scale is None else scale))
    return np.stack(out), state


def of_batch(function, *arrays):
    made = [function(*(x[i] for x in arrays)) for i in range(len(arrays[0]))]
    return tuple(np.stack([x[i] for x in made]) for i in (0, 1))


def linear(rng):
    return (floats(rng, B, T, N, H) for _ in range(3))


@call
def recurrent_attention__all_gates(rng):
    q, k, v = linear(rng)
    g, gk = (-np.abs(floats(rng, B, T, N, H)) for _ in range(2))
    gamma, state = -np.abs(floats(rng, N)), floats(rng, B, N, H, H)
    result = of_batch(lambda q, k, v, d, s: recur(q, k, v, decay=d, state=s), q, k, v, g + gk + gamma[:, None], state)
    return (q, k, v, g, gamma, gk, None, state), {"return_state": True}, result


@call
def gla_attention__reversed(rng):
    q, k, v = linear(rng)
    g = -np.abs(floats(rng, B, T, N, H))
    out, state = of_batch(lambda q, k, v, d: recur(q, k, v, decay=d, scale=0.5), *(x[:, ::-1] for x in (q, k, v, g)))
    keywords = {"reverse": True, "return_state": True, "softmax_scale": 0.5}
    return (q, k, v, g, None, np.zeros_like(state)), keywords, (out[:, ::-1], state)


@call
def lightning_attention__layer(rng):
    q, k, v = linear(rng)
    decay = np.broadcast_to(-8 / N * (1 - 1 / 3) * np.arange(N)[:, None], (T, N, 1))
    out = batch(lambda *x: recur(*x, decay=decay), q, k, v)
    return (q, k, v), {"layer_idx": 1, "num_layers": 3}, out


def normal(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


@call
def kernel_delta_attention__state(rng):
    q, k, v = linear(rng)
    beta, decay = rng.uniform(0, 1, (B, T, N)).astype(np.float32), -np.abs(floats(rng, B, T, N))
    state = floats(rng, B, N, H, H)
    result = of_batch(
        lambda q, k, v, b, d, s: recur(q, k, v, beta=b, decay=d, state=s),
        *(normal(q), normal(k), v, beta, decay[..., None], state),
    )
    return (q, k, v, beta, decay, state), {"return_state": True, "chunk_size": 64}, result


@call
def gated_delta_rule__segments(rng):
    q, k, v = linear(rng)
    beta, decay = rng.uniform(0, 1, (B, T, N)).astype(np.float32), -np.abs(floats(rng, B, T, N))
    ids = np.array([[0, 0, 0, 0, 1, 1], [2, 3, 3, 3, 3, 3]], np.int32)
    forgotten = np.where(np.diff(ids, axis=1, prepend=ids[:, :1])[..., None] != 0, -np.inf, decay)
    out = of_batch(
        lambda q, k, v, b, d: recur(q, k, v, beta=b, decay=d), normal(q), normal(k), v, beta, forgotten[..., None]
    )[0]
    return (q, k, v, beta, decay, ids), {}, out


@call
def ragged_gated_delta_rule__slots(rng):
    q, k, v = (floats(rng, 5, N, H) for _ in range(3))
    beta, decay = rng.uniform(0, 1, (5, N)).astype(np.float32), -np.abs(floats(rng, 5, N))
    states, slots = floats(rng, 4, N, H, H), np.array([3, 1], np.int32)
    out, after = np.zeros_like(v), states.copy()
    for i, slot in enumerate(slots):
        rows = slice(STARTS[i], STARTS[i + 1])
        out[rows], after[slot] = recur(
            normal(q[rows]), normal(k[rows]), v[rows], beta=beta[rows], decay=decay[rows, :, None], state=states[slot]
        )
    return (q, k, v, beta, decay, states, STARTS, slots), {}, (out, after)


@call
def mean_pooling__whole(rng):
    x = floats(rng, B, T, H)
    return (x,), {}, x.mean(axis=1)


@call
def mean_pooling__packed(rng):
    # Rows behind the last sequence are padding; ejkernel's slices would be shifted at the end of an array without.
    x = floats(rng, 9, H)
    return (x, STARTS), {}, np.stack([x[:4].mean(axis=0), x[4]])
