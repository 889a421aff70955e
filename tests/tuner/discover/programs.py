"""Programs with attention in many spellings, and the signatures that are in them. Shapes only: nothing is allocated."""

import jax
import jax.numpy as jnp
from jax.nn import dot_product_attention as stock

import attn_tune

Q = jax.ShapeDtypeStruct((2, 64, 4, 16), jnp.bfloat16)
KV = jax.ShapeDtypeStruct((2, 64, 2, 16), jnp.bfloat16)
BASE = "b=2 t=64 s=64 n=4 k=2 h=16 v=16 dtype=bfloat16"
MHA = "b=2 t=64 s=64 n=4 k=4 h=16 v=16"


def shape(*sizes, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(sizes, dtype)


def trained(function, count=3):
    """The value of the sum and gradients in the first ``count`` arguments."""

    def loss(*args):
        return function(*args).astype(jnp.float32).sum()

    return jax.value_and_grad(loss, tuple(range(count)))


def einsum_attention(q, k, v, *, cap=None, window=None, additive=False, segments=None):
    """Attention as people write it: BNTS logits, a mask from positions, a softmax."""
    logits = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    if cap:
        logits = cap * jnp.tanh(logits / cap)
    i, j = jnp.arange(q.shape[1])[:, None], jnp.arange(k.shape[1])[None]
    seen = i >= j
    if window:
        seen &= i - j < window
    seen = seen[None, None]
    if segments is not None:
        seen = seen & (segments[:, None, :, None] == segments[:, None, None, :])
    if additive:
        logits = logits + jnp.where(seen, 0.0, -1e9)
    else:
        logits = jnp.where(seen, logits, jnp.finfo(logits.dtype).min)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits, axis=-1), v)


def heads_first(q, k, v):
    """BKGTH layout: heads stand before lengths."""
    logits = jnp.einsum("bkgth,bksh->bkgts", q, k)
    return jnp.einsum("bkgts,bksh->bkgth", jax.nn.softmax(logits), v)


def multi_query(q, k, v):
    """One key/value head without an axis of its own."""
    logits = jnp.einsum("btnh,bsh->bnts", q, k)
    return jnp.einsum("bnts,bsh->btnh", jax.nn.softmax(logits), v)


def repeated(q, k, v):
    """Key/value heads repeated for their groups."""
    k, v = (jnp.repeat(x, 2, axis=2) for x in (k, v))
    return einsum_attention(q, k, v)


def with_dropout(q, k, v, key):
    logits = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    weights = jax.nn.softmax(logits)
    keep = jax.random.bernoulli(key, 0.9, weights.shape)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.where(keep, weights / 0.9, 0), v)


def layers(attend, remat=False):
    """A scan over five layers."""

    def body(x, w):
        q, k, v = jnp.einsum("btd,dcnh->cbtnh", x, w)
        return x + attend(q, k, v).reshape(x.shape), None

    body = jax.checkpoint(body) if remat else body
    return lambda x, w: jax.lax.scan(body, x, w)[0]


LAYERS = (shape(2, 64, 64), shape(5, 64, 3, 4, 16))
MASK = shape(2, 1, 1, 64, dtype=bool)
BIAS = shape(1, 4, 64, 64, dtype=jnp.float32)
ONCE, FWD = {"fwd": 1, "bwd": 1}, {"fwd": 1}


def causal(q, k, v):
    return stock(q, k, v, is_causal=True)


def ours(q, k, v, **words):
    return attn_tune.flash_attention(q, k, v, causal=True, **words)


# name: (function, arguments, rest of the signature, counts)
PROGRAMS = {
    "stock": (trained(stock), (Q, KV, KV), BASE, ONCE),
    "stock causal": (trained(causal), (Q, KV, KV), f"{BASE} causal=1", ONCE),
    "stock window": (
        trained(lambda q, k, v: stock(q, k, v, local_window_size=(7, 3))),
        (Q, KV, KV),
        f"{BASE} left=7 right=3",
        ONCE,
    ),
    "stock causal window": (
        trained(lambda q, k, v: stock(q, k, v, is_causal=True, local_window_size=7)),
        (Q, KV, KV),
        f"{BASE} causal=1 left=7",
        ONCE,
    ),
    "stock mask": (
        trained(lambda q, k, v, m: stock(q, k, v, mask=m, is_causal=True)),
        (Q, KV, KV, MASK),
        f"{BASE} causal=1 mask=b11s",
        ONCE,
    ),
    "stock bias": (
        trained(lambda q, k, v, b: stock(q, k, v, bias=b), 4),
        (Q, KV, KV, BIAS),
        f"{BASE} bias=1nts",
        ONCE,
    ),
    "stock lengths": (
        lambda q, k, v, n: stock(q, k, v, key_value_seq_lengths=n),
        (Q, KV, KV, shape(2, dtype=jnp.int32)),
        f"{BASE} mask=b11s",
        FWD,
    ),
    "stock decode": (
        stock,
        (shape(2, 1, 4, 16), KV, KV),
        "b=2 t=1 s=64 n=4 k=2 h=16 v=16 dtype=bfloat16",
        FWD,
    ),
    "aligned at the top left": (
        causal,
        (shape(2, 32, 4, 16), KV, KV),
        "b=2 t=32 s=64 n=4 k=2 h=16 v=16 dtype=bfloat16 mask=11ts",
        FWD,
    ),
    "vmap": (
        trained(jax.vmap(causal)),
        tuple(shape(3, *x.shape) for x in (Q, KV, KV)),
        "b=6 t=64 s=64 n=4 k=2 h=16 v=16 dtype=bfloat16 causal=1",
        ONCE,
    ),
    "remat": (trained(jax.checkpoint(causal)), (Q, KV, KV), f"{BASE} causal=1", ONCE),
    "einsum capped": (
        trained(lambda q, k, v: einsum_attention(q, k, v, cap=50.0)),
        (Q, Q, Q),
        f"{MHA} dtype=bfloat16 causal=1 cap=1",
        ONCE,
    ),
    "einsum window, additive mask": (
        trained(lambda q, k, v: einsum_attention(q, k, v, window=8, additive=True)),
        (Q, Q, Q),
        f"{MHA} dtype=bfloat16 causal=1 left=7",
        ONCE,
    ),
    "segments": (
        trained(lambda q, k, v, s: einsum_attention(q, k, v, segments=s)),
        (Q, Q, Q, shape(2, 64, dtype=jnp.int32)),
        f"{MHA} dtype=bfloat16 causal=1 seg=1",
        ONCE,
    ),
    "heads first": (
        trained(heads_first),
        (shape(2, 2, 3, 64, 16), shape(2, 2, 48, 16), shape(2, 2, 48, 8)),
        "b=2 t=64 s=48 n=6 k=2 h=16 v=8 dtype=bfloat16",
        ONCE,
    ),
    "multi-query": (
        trained(multi_query),
        (Q, shape(2, 48, 16), shape(2, 48, 16)),
        "b=2 t=64 s=48 n=4 k=1 h=16 v=16 dtype=bfloat16",
        ONCE,
    ),
    "repeated heads": (trained(repeated), (Q, KV, KV), f"{BASE} causal=1", ONCE),
    "dropout": (
        trained(with_dropout),
        (Q, Q, Q, jax.eval_shape(lambda: jax.random.key(0))),
        f"{MHA} dtype=bfloat16 drop=1",
        ONCE,
    ),
    "scan": (
        trained(layers(causal), 2),
        LAYERS,
        f"{MHA} dtype=bfloat16 causal=1",
        {"fwd": 5, "bwd": 5},
    ),
    "scan with remat": (
        trained(layers(causal, remat=True), 2),
        LAYERS,
        f"{MHA} dtype=bfloat16 causal=1",
        {"fwd": 5, "bwd": 5},
    ),
    "ours": (trained(ours), (Q, KV, KV), f"{BASE} causal=1", ONCE),
    "ours with sinks": (
        trained(lambda q, k, v, s: ours(q, k, v, softmax_aux=s, sliding_window=(7, None)), 4),
        (Q, KV, KV, shape(4, dtype=jnp.float32)),
        f"{BASE} causal=1 left=7 sinks=1",
        ONCE,
    ),
    "ours in a scan": (
        trained(layers(ours), 2),
        LAYERS,
        f"{MHA} dtype=bfloat16 causal=1",
        {"fwd": 5, "bwd": 5},
    ),
}


def cross_entropy(x, w, u):
    """Products and a softmax that are no attention: a perceptron, a norm, a loss over a vocabulary."""
    h = jax.nn.gelu(x @ w) @ u
    h = h / jnp.sqrt((h**2).mean(-1, keepdims=True))
    return -jax.nn.log_softmax(h @ w)[..., 0].mean()


def experts(x, router, w):
    """A softmax over experts that weighs their outputs."""
    gates = jax.nn.softmax(x @ router)
    return jnp.einsum("te,edf,td->tf", gates, w, x)


NO_ATTENTION = {
    "cross entropy": (
        jax.value_and_grad(cross_entropy, (0, 1, 2)),
        (shape(2, 8, 64), shape(64, 32), shape(32, 64)),
    ),
    "experts": (trained(experts), (shape(32, 64), shape(64, 4), shape(4, 64, 64))),
}


def chunked(q, k, v):
    """An online softmax over chunks of keys: a chunk does not say how long the whole is."""

    def body(carry, kv):
        peak, total, acc = carry
        logits = jnp.einsum("bnth,bnsh->bnts", q, kv[0])
        new = jnp.maximum(peak, logits.max(-1))
        weights = jnp.exp(logits - new[..., None])
        shrink = jnp.exp(peak - new)
        acc = acc * shrink[..., None] + jnp.einsum("bnts,bnsh->bnth", weights, kv[1])
        return (new, total * shrink + weights.sum(-1), acc), None

    rows = q.shape[:3]
    start = (jnp.full(rows, -jnp.inf), jnp.zeros(rows), jnp.zeros(q.shape))
    (_, total, acc), _ = jax.lax.scan(body, start, (k, v))
    return acc / total[..., None]


def scaled(q, k, v, temperature):
    logits = jnp.einsum("bqhd,bkhd->bhqk", q, k) * temperature[None, :, None, None]
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits), v)


def eight_bits(q, k, v):
    logits = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(logits).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v, preferred_element_type=jnp.float32)


F32 = shape(2, 64, 4, 16, dtype=jnp.float32)
UNREAD = {
    "chunks": (
        chunked,
        (shape(2, 4, 64, 16, dtype=jnp.float32), *(shape(3, 2, 4, 32, 16, dtype=jnp.float32),) * 2),
        "chunks",
    ),
    "learned temperature": (scaled, (F32, F32, F32, shape(4, dtype=jnp.float32)), "multiplied"),
    "8-bit floats": (
        eight_bits,
        tuple(shape(2, 64, 4, 16, dtype=jnp.float8_e4m3fn) for _ in range(3)),
        "must be one of bfloat16, float16, float32",
    ),
}
