"""The two models of ``train_linear.py``, and the implementations of their two mixers.

The first layer is that of ``examples/gated_delta_layer.py`` or ``examples/kimi_delta_layer.py`` with products in 16
bits and gates in float32, the second full attention: with gated output (Qwen3-Next), or over latents without
positions (Kimi Linear). Both have a gated perceptron.
"""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from training_runs import cross_entropy, rms_norm, rotated, swiglu

import attn_tune

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))

from gated_delta_layer import convolved, of_length_one

# The op of each model's first layer.
MODELS = {"qwen3-next": "gated_delta_rule", "kimi-linear": "kda"}
WINDOW, TOKENS_KEPT = 4, 64


class Sizes(NamedTuple):
    """Sizes of both models.

    Attributes:
      width, inner, vocabulary: of the whole; ``inner`` is the width of perceptrons.
      key_heads, heads, head_dim: of the linear layer; Kimi's has ``heads`` of each kind.
      full_heads, full_kv_heads, full_dim: of Qwen3-Next's attention.
      latent, shared: widths of the latents of Kimi's attention, and of the part of a key that all heads share.
      rank: the rank of Kimi's gates.
    """

    width: int = 1024
    inner: int = 4096
    vocabulary: int = 512
    key_heads: int = 8
    heads: int = 16
    head_dim: int = 128
    full_heads: int = 8
    full_kv_heads: int = 2
    full_dim: int = 256
    latent: int = 512
    shared: int = 64
    rank: int = 128

    @classmethod
    def tiny(cls) -> "Sizes":
        return cls(32, 64, 32, 1, 2, 16, 2, 1, 16, 16, 8, 8)


class Implementation(NamedTuple):
    """The functions and the dtype that the two mixers are computed with.

    Attributes:
      rule: ``(op, q, k, v, g, beta) -> out``.
      attend: causal attention ``(q, k, v) -> out``.
      dtype: of products and of what lies between them.
    """

    rule: Callable[..., jax.Array]
    attend: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    dtype: Any


def our_rule(platform: str | None, op: str, *operands: jax.Array) -> jax.Array:
    """The op of attn-tune."""
    return getattr(attn_tune, op)(*operands, platform=platform)


def our_attention(platform: str | None, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention by attn-tune."""
    return attn_tune.flash_attention(q, k, v, causal=True, platform=platform)


def recurrence(op: str, q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, beta: jax.Array) -> jax.Array:
    """Both rules token by token in float32, without a matrix product; ``g`` has an entry a head or a channel.

    The backward makes the states of 64 tokens again from the one before them.
    """
    groups, scale = v.shape[2] // k.shape[2], q.shape[-1] ** -0.5
    q, k = (jnp.repeat(x, groups, axis=2) for x in (q, k))
    if op == "gated_delta_rule":
        g = g[..., None]
    columns = [jnp.moveaxis(x.astype(jnp.float32), 1, 0)[..., None] for x in (q, k, g)]
    rows = [jnp.moveaxis(x.astype(jnp.float32), 1, 0)[..., None, :] for x in (v, beta[..., None])]

    def token(state: jax.Array, x: Any) -> tuple[jax.Array, jax.Array]:
        (q, k, g), (v, beta) = x
        state = jnp.exp(g) * state
        known = jnp.sum(k * state, axis=-2, keepdims=True)
        state = state + k * (beta * (v - known))
        return state, scale * jnp.sum(q * state, axis=-2)

    @jax.checkpoint
    def tokens(state: jax.Array, x: Any) -> tuple[jax.Array, jax.Array]:
        return jax.lax.scan(token, state, x)

    kept = min(TOKENS_KEPT, v.shape[1])
    parts = jax.tree.map(lambda x: x.reshape(-1, kept, *x.shape[1:]), (columns, rows))
    batch, length, heads, wide = v.shape
    _, out = jax.lax.scan(tokens, jnp.zeros((batch, heads, q.shape[-1], wide)), parts)
    return jnp.moveaxis(out.reshape(length, batch, heads, wide), 0, 1).astype(v.dtype)


@jax.checkpoint
def dense_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention with all weights in float32."""
    groups, length = q.shape[2] // k.shape[2], q.shape[1]
    k, v = (jnp.repeat(x, groups, axis=2) for x in (k, v))
    logits = jnp.einsum("btnh,bsnh->bnts", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
    seen = jnp.arange(length)[:, None] >= jnp.arange(length)
    weights = jax.nn.softmax(jnp.where(seen, logits, -jnp.inf), axis=-1)
    return jnp.einsum("bnts,bsnv->btnv", weights.astype(v.dtype), v)


IMPLEMENTATIONS = {
    "ours": Implementation(functools.partial(our_rule, None), functools.partial(our_attention, None), jnp.bfloat16),
    "xla": Implementation(functools.partial(our_rule, "xla"), functools.partial(our_attention, "xla"), jnp.bfloat16),
    "recurrence": Implementation(recurrence, dense_attention, jnp.bfloat16),
    "float32": Implementation(recurrence, dense_attention, jnp.float32),
}


def initial(model: str, s: Sizes) -> dict[str, Any]:
    """Random parameters in float32; heads start with rates of forgetting between 1 and 16, as Mamba-2 draws them."""
    keys = iter(jax.random.split(jax.random.key(0), 40))

    def draw(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) * shape[0] ** -0.5

    values = s.heads * s.head_dim
    linear = {
        "A_log": jnp.log(jax.random.uniform(next(keys), (s.heads,), minval=1.0, maxval=16.0)),
        "beta": draw(s.width, s.heads),
        "norm": jnp.ones(s.head_dim),
        "out": draw(values, s.width),
    }
    if model == "qwen3-next":
        channels = 2 * s.key_heads * s.head_dim + values
        linear |= {"a": draw(s.width, s.heads), "dt_bias": jnp.full(s.heads, -3.0), "z": draw(s.width, values)}
        heads = s.full_heads * s.full_dim
        full = {"q": draw(s.width, heads), "z": draw(s.width, heads), "out": draw(heads, s.width)}
        full |= {name: draw(s.width, s.full_kv_heads * s.full_dim) for name in "kv"}
        full |= {"q_norm": jnp.ones(s.full_dim), "k_norm": jnp.ones(s.full_dim)}
    else:
        channels = 3 * values
        linear |= {"dt_bias": jnp.full((s.heads, s.head_dim), -3.0)}
        linear |= {f"{name}_down": draw(s.width, s.rank) for name in ("gate", "z")}
        linear |= {f"{name}_up": draw(s.rank, values) for name in ("gate", "z")}
        full = {
            "q": draw(s.width, s.heads * (s.head_dim + s.shared)),
            "down": draw(s.width, s.latent + s.shared),
            "latent_norm": jnp.ones(s.latent),
            "k_up": draw(s.latent, values),
            "v_up": draw(s.latent, values),
            "out": draw(values, s.width),
        }
    linear |= {"mixed": draw(s.width, channels), "filter": draw(WINDOW, channels)}
    layers = [
        {
            "mixer": mixer,
            "norms": jnp.ones((2, s.width)),
            "gate": draw(s.width, s.inner),
            "up": draw(s.width, s.inner),
            "down": draw(s.inner, s.width),
        }
        for mixer in (linear, full)
    ]
    embedding = jax.random.normal(next(keys), (s.vocabulary, s.width))
    return {"embedding": embedding, "layers": layers, "norm": jnp.ones(s.width), "head": draw(s.width, s.vocabulary)}


def loss(model: str, s: Sizes, how: Implementation, params: Any, tokens: jax.Array) -> jax.Array:
    """Mean cross-entropy of the next token; tokens ``[sequences, length + 1]``."""
    x = params["embedding"].astype(how.dtype)[tokens[:, :-1]]
    is_qwen = model == "qwen3-next"
    mixers = (delta_layer if is_qwen else kimi_layer, gated_attention if is_qwen else latent_attention)
    for mixer, w in zip(mixers, params["layers"], strict=True):
        x = x + mixer(w["mixer"], s, how, rms_norm(x, w["norms"][0]))
        x = x + swiglu(rms_norm(x, w["norms"][1]), *(w[name].astype(x.dtype) for name in ("gate", "up", "down")))
    x = rms_norm(x, params["norm"]).reshape(-1, s.width)
    return cross_entropy(x, params["head"].astype(x.dtype), tokens[:, 1:].reshape(-1), 8192)


def delta_layer(w: Any, s: Sizes, how: Implementation, x: jax.Array) -> jax.Array:
    """Qwen3-Next's layer of the gated delta rule."""
    keys = s.key_heads * s.head_dim
    q, k, v = (of_heads(y, s.head_dim) for y in jnp.split(mixed(w, x), [keys, 2 * keys], axis=-1))
    g = -jnp.exp(w["A_log"]) * jax.nn.softplus((x @ w["a"].astype(x.dtype)).astype(jnp.float32) + w["dt_bias"])
    out = how.rule("gated_delta_rule", unit(q), unit(k), v, g, strength(w, x))
    z = jax.nn.silu(of_heads(x @ w["z"].astype(x.dtype), s.head_dim))
    return (rms_norm(out, w["norm"]) * z).reshape(*x.shape[:2], -1) @ w["out"].astype(x.dtype)


def kimi_layer(w: Any, s: Sizes, how: Implementation, x: jax.Array) -> jax.Array:
    """Kimi Linear's layer of ``kda``."""
    q, k, v = (of_heads(y, s.head_dim) for y in jnp.split(mixed(w, x), 3, axis=-1))
    gate, z = (
        of_heads(x @ w[f"{name}_down"].astype(x.dtype) @ w[f"{name}_up"].astype(x.dtype), s.head_dim)
        for name in ("gate", "z")
    )
    g = -jnp.exp(w["A_log"])[:, None] * jax.nn.softplus(gate.astype(jnp.float32) + w["dt_bias"])
    out = how.rule("kda", unit(q), unit(k), v, g, strength(w, x))
    return (rms_norm(out, w["norm"]) * jax.nn.sigmoid(z)).reshape(*x.shape[:2], -1) @ w["out"].astype(x.dtype)


def gated_attention(w: Any, s: Sizes, how: Implementation, x: jax.Array) -> jax.Array:
    """Qwen3-Next's attention: norms of queries and keys, positions in all of a head, a gate on the output."""
    q, k, v, z = (of_heads(x @ w[name].astype(x.dtype), s.full_dim) for name in ("q", "k", "v", "z"))
    out = how.attend(rotated(rms_norm(q, w["q_norm"])), rotated(rms_norm(k, w["k_norm"])), v)
    return (out * jax.nn.sigmoid(z)).reshape(*x.shape[:2], -1) @ w["out"].astype(x.dtype)


def latent_attention(w: Any, s: Sizes, how: Implementation, x: jax.Array) -> jax.Array:
    """Kimi Linear's attention: keys and values from latents, a part of each key shared by all heads."""
    q = of_heads(x @ w["q"].astype(x.dtype), s.head_dim + s.shared)
    latent, shared = jnp.split(x @ w["down"].astype(x.dtype), [s.latent], axis=-1)
    latent = rms_norm(latent, w["latent_norm"])
    k, v = (of_heads(latent @ w[name].astype(x.dtype), s.head_dim) for name in ("k_up", "v_up"))
    shared = jnp.broadcast_to(shared[:, :, None], (*k.shape[:3], s.shared))
    out = how.attend(q, jnp.concatenate([k, shared], axis=-1), v)
    return out.reshape(*x.shape[:2], -1) @ w["out"].astype(x.dtype)


def mixed(w: Any, x: jax.Array) -> jax.Array:
    """Queries, keys and values after their short convolution."""
    y = x @ w["mixed"].astype(x.dtype)
    recent = jnp.zeros((y.shape[0], WINDOW - 1, y.shape[2]), y.dtype)
    return convolved(y, recent, w["filter"].astype(y.dtype))[0]


def strength(w: Any, x: jax.Array) -> jax.Array:
    """Strengths of updates, between 0 and 1, in float32."""
    return jax.nn.sigmoid((x @ w["beta"].astype(x.dtype)).astype(jnp.float32))


def unit(x: jax.Array) -> jax.Array:
    """``x`` with length one, made so in float32, in its dtype."""
    return of_length_one(x.astype(jnp.float32)).astype(x.dtype)


def of_heads(x: jax.Array, head_dim: int) -> jax.Array:
    """``[B, T, heads * head dim]`` as ``[B, T, heads, head dim]``."""
    return x.reshape(*x.shape[:2], -1, head_dim)
