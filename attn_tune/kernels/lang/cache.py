"""Attention over a cache in plain JAX: an online softmax over steps of gathered keys."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn_tune.ops.fields.cache import SAME, sizes_of

type State = tuple[Array, Array, Array]


def attend(
    problem: Any,
    operands: Any,
    step: int,
    q: Float[Array, "B T N H"],
    sequences: Int[Array, " B"],
    position: Int[Array, "B T"],
    lowest: Int[Array, " B"],
) -> tuple[Float[Array, "B T N V"], Float[Array, "B T N"]]:
    """The output in q's dtype and the natural lse in float32 of tiles of queries, which walk their keys together.

    Args:
      step: the keys of every tile that are gathered at a time.
      sequences: of each tile, the row of the page table, or of a contiguous cache.
      position: of each query, within the cache; one below zero sees nothing.
      lowest: the first key that a query of the tile sees.
    """
    p, o = problem, operands
    batch, q_len, num_q_heads, head_dim = q.shape
    kv_heads = sizes_of(p.layout, o.k.shape)["head"]
    group, width = num_q_heads // kv_heads, head_dim if o.v is None else o.v.shape[-1]
    precision = "highest" if q.dtype == jnp.float32 else None
    q = q.reshape(batch, q_len, kv_heads, group, head_dim)
    end = jnp.max(position, axis=1) + 1
    position = position[:, None, None, :, None]

    def walk(i: Int[Array, ""], state: State) -> State:
        acc, total, maximum = state
        token = i * step + jnp.arange(step)
        counts = (token < end[:, None]) & (token >= lowest[:, None])
        k, v, k_scale, v_scale = _gathered(p, o, sequences, token, counts)
        logits = jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32, precision=precision)
        logits *= p.scale if k_scale is None else p.scale * k_scale
        if p.soft_cap is not None:
            logits = p.soft_cap * jnp.tanh(logits / p.soft_cap)
        visible = counts[:, None, None, None, :] & (token <= position)
        if p.window is not None:
            visible &= token >= position - p.window
        logits = jnp.where(visible, logits, -jnp.inf)
        highest = jnp.maximum(maximum, jnp.max(logits, axis=-1))
        shift = jnp.where(jnp.isneginf(highest), 0.0, highest)
        weights = jnp.exp(logits - shift[..., None])
        correction = jnp.exp(maximum - shift)
        total = total * correction + jnp.sum(weights, axis=-1)
        if v_scale is not None:
            weights = weights * v_scale
        product = jnp.einsum(
            "bkgts,bskv->bkgtv", weights.astype(v.dtype), v, preferred_element_type=jnp.float32, precision=precision
        )
        return acc * correction[..., None] + product, total, highest

    rows = (batch, kv_heads, group, q_len)
    maximum = jnp.full(rows, -jnp.inf)
    if o.sinks is not None:
        maximum = jnp.broadcast_to(o.sinks.reshape(1, kv_heads, group, 1), rows)
    total = jnp.where(jnp.isneginf(maximum), 0.0, 1.0)
    like = zero_like(q)
    start = (jnp.zeros((*rows, width)) + like, total + like, maximum + like)
    first = jnp.min(jnp.where(end > 0, lowest, jnp.max(end)))
    acc, total, maximum = jax.lax.fori_loop(first // step, -(-jnp.max(end) // step), walk, start)
    seen = total > 0
    out = acc / jnp.where(seen, total, 1.0)[..., None]
    lse = jnp.where(seen, maximum + jnp.log(jnp.where(seen, total, 1.0)), -jnp.inf)
    order = (0, 3, 1, 2)
    out = out.transpose(*order, 4).reshape(batch, q_len, num_q_heads, width).astype(q.dtype)
    return out, lse.transpose(order).reshape(batch, q_len, num_q_heads)


def zero_like(q: Array) -> Float[Array, ""]:
    """A zero that varies over devices as the queries do: under ``shard_map`` a loop keeps the types it starts with."""
    first = q.reshape(-1)[:1].astype(jnp.float32)
    return jnp.sum(jnp.where(jnp.isfinite(first), 0.0 * first, 0.0))


def _gathered(
    problem: Any,
    operands: Any,
    sequences: Int[Array, " B"],
    token: Int[Array, "B step"] | Int[Array, " step"],
    counts: Bool[Array, "B step"],
) -> tuple[Array, Array, Array | None, Array | None]:
    """Keys and values [B, step, K, width] and what their codes are multiplied by; zero where ``counts`` is false.

    Scales are broadcast against logits [B, K, group, queries, step].

    Args:
      sequences: the rows of the page table, or of a contiguous cache.
      token: the tokens of each sequence, or the same of all.
    """
    p, o = problem, operands
    token = jnp.broadcast_to(token, counts.shape)
    slots = sizes_of(p.layout, o.k.shape)["slot"]
    if o.page_table is None:
        page, slot = sequences[:, None], token
    else:
        columns = jnp.minimum(token // slots, o.page_table.shape[1] - 1)
        page, slot = jnp.where(counts, o.page_table[sequences[:, None], columns], 0), token % slots

    def take(x: Array, layout: str) -> Array:
        # Where the two indices stand side by side the gathered axes take their place, otherwise they come first.
        if layout == "hnd":
            return x.at[page, :, slot].get(mode="clip")
        if layout == "head_first":
            return jnp.moveaxis(x.at[:, page, slot].get(mode="clip"), 0, 2)
        return x.at[page, slot].get(mode="clip")

    def zeroed(x: Array) -> Array:
        return jnp.where(counts[:, :, None, None] if x.ndim == 4 else counts[:, :, None], x, jnp.zeros((), x.dtype))

    k = zeroed(take(o.k, p.layout))
    k, v = (k[:, :, 0::2], k[:, :, 1::2]) if o.v is None else (k, zeroed(take(o.v, p.layout)))
    if p.kv_dtype == SAME:
        return k, v, None, None
    # In float32 the scales of values are exact, as weights times scales in a narrow dtype are not.
    k, v = k.astype(o.q.dtype), v.astype(jnp.float32)

    def scale_of(scale: Array | None) -> Array | None:
        if scale is None or p.kv_scale == "tensor":
            return scale
        if p.kv_scale == "head":
            return scale[None, :, None, None, None]
        found = zeroed(take(scale, "nhd" if o.v is None else p.layout))
        return found.transpose(0, 2, 1)[:, :, None, None, :]

    return k, v, scale_of(o.k_scale), scale_of(o.v_scale)
