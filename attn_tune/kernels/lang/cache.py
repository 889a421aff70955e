"""Attention over a cache in plain JAX: an online softmax over steps of gathered keys."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn_tune.ops.fields.cache import BLOCK, COLUMNS, LATENT, SAME, sizes_of

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
    end = jnp.max(position, axis=1) + 1

    def walk(i: Int[Array, ""], state: State) -> State:
        token = i * step + jnp.arange(step)
        counts = (token < end[:, None]) & (token >= lowest[:, None])
        return _joined(problem, operands, q, sequences, position, token, counts, state)

    first = jnp.min(jnp.where(end > 0, lowest, jnp.max(end)))
    start = _nothing(problem, operands, q)
    out, lse = _finished(jax.lax.fori_loop(first // step, -(-jnp.max(end) // step), walk, start))
    return out.astype(q.dtype), lse


def attend_to(
    problem: Any,
    operands: Any,
    q: Float[Array, "B T N H"],
    sequences: Int[Array, " B"],
    position: Int[Array, "B T"],
    token: Int[Array, "B keys"],
    counts: Bool[Array, "B keys"],
) -> tuple[Float[Array, "B T N V"], Float[Array, "B T N"]]:
    """The output and the natural lse, both in float32, of tiles of queries over a few keys that are named one by one.

    Args:
      sequences, position: as of ``attend``.
      token: of each tile, places of keys within the cache.
      counts: which of them there are; no other is read.
    """
    start = _nothing(problem, operands, q)
    return _finished(_joined(problem, operands, q, sequences, position, token, counts, start))


def merged(
    first: tuple[Float[Array, "... V"], Float[Array, "..."]], second: tuple[Float[Array, "... V"], Float[Array, "..."]]
) -> tuple[Float[Array, "... V"], Float[Array, "..."]]:
    """The output and the lse over two sets of keys from those of each; a set without keys has zero and minus infinity.

    A sink is a set of one key whose value is zero.
    """
    lse = jnp.logaddexp(first[1], second[1])
    shift = jnp.where(jnp.isneginf(lse), 0.0, lse)
    out = sum(values * jnp.exp(own - shift)[..., None] for values, own in (first, second))
    return jnp.asarray(out), lse


def _nothing(problem: Any, operands: Any, q: Float[Array, "B T N H"]) -> State:
    """The sums before the first key: nothing, or the sinks."""
    batch, q_len, num_q_heads, _ = q.shape
    kv_heads = sizes_of(problem.layout, operands.k.shape)["head"]
    rows = (batch, kv_heads, num_q_heads // kv_heads, q_len)
    maximum = jnp.full(rows, -jnp.inf)
    if operands.sinks is not None:
        maximum = jnp.broadcast_to(operands.sinks.reshape(1, *rows[1:3], 1), rows)
    total = jnp.where(jnp.isneginf(maximum), 0.0, 1.0)
    like = zero_like(q)
    return jnp.zeros((*rows, problem.v_head_dim)) + like, total + like, maximum + like


def _joined(
    problem: Any,
    operands: Any,
    q: Float[Array, "B T N H"],
    sequences: Int[Array, " B"],
    position: Int[Array, "B T"],
    token: Int[Array, "B keys"] | Int[Array, " keys"],
    counts: Bool[Array, "B keys"],
    state: State,
) -> State:
    """The sums with those over some more keys."""
    p, (acc, total, maximum) = problem, state
    kv_heads = acc.shape[1]
    precision = "highest" if q.dtype == jnp.float32 else None
    q = q.reshape(*q.shape[:2], kv_heads, -1, q.shape[-1])
    position = position[:, None, None, :, None]
    token = jnp.broadcast_to(token, counts.shape)
    k, v, k_scale, v_scale = _gathered(p, operands, sequences, token, counts)
    logits = jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32, precision=precision)
    logits *= p.scale if k_scale is None else p.scale * k_scale
    if p.soft_cap is not None:
        logits = p.soft_cap * jnp.tanh(logits / p.soft_cap)
    token = token[:, None, None, None, :]
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


def _finished(state: State) -> tuple[Float[Array, "B T N V"], Float[Array, "B T N"]]:
    """The output and the lse, in float32; zero and minus infinity where nothing was seen."""
    acc, total, maximum = state
    batch, kv_heads, group, q_len, width = acc.shape
    seen = total > 0
    out = acc / jnp.where(seen, total, 1.0)[..., None]
    lse = jnp.where(seen, maximum + jnp.log(jnp.where(seen, total, 1.0)), -jnp.inf)
    order = (0, 3, 1, 2)
    out = out.transpose(*order, 4).reshape(batch, q_len, kv_heads * group, width)
    return out, lse.transpose(order).reshape(batch, q_len, kv_heads * group)


def zero_like(q: Array) -> Float[Array, ""]:
    """A zero that varies over devices as the queries do: under ``shard_map`` a loop keeps the types it starts with."""
    first = q.reshape(-1)[:1].astype(jnp.float32)
    return jnp.sum(jnp.where(jnp.isfinite(first), 0.0 * first, 0.0))


def _gathered(
    problem: Any,
    operands: Any,
    sequences: Int[Array, " B"],
    token: Int[Array, "B step"],
    counts: Bool[Array, "B step"],
) -> tuple[Array, Array, Array | None, Array | None]:
    """Keys and values [B, step, K, width] and what their codes are multiplied by; zero where ``counts`` is false.

    Scales are broadcast against logits [B, K, group, queries, step].

    Args:
      sequences: the rows of the page table, or of a contiguous cache.
      token: the tokens of each sequence.
    """
    p, o = problem, operands
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
    if p.kv_scale == BLOCK:
        k = _dequantised(k, o.q.dtype, p.v_head_dim)
        return k, k[..., : p.v_head_dim], None, None
    if p.layout == LATENT:
        v = k[..., : p.v_head_dim]
    else:
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


def _dequantised(rows: Array, dtype: jnp.dtype, width: int) -> Array:
    """Keys of tokens that are bytes: ``width`` codes of float8, a scale for each 128, and numbers in ``dtype``."""
    tokens, blocks = rows.shape[:-1], width // COLUMNS
    codes = jax.lax.bitcast_convert_type(rows[..., :width], jnp.float8_e4m3fn).reshape(*tokens, blocks, COLUMNS)
    scales = jax.lax.bitcast_convert_type(
        rows[..., width : width + 4 * blocks].reshape(*tokens, blocks, 4), jnp.float32
    )
    values = (codes.astype(jnp.float32) * scales[..., None]).reshape(*tokens, width).astype(dtype)
    rest = jax.lax.bitcast_convert_type(rows[..., width + 4 * blocks :].reshape(*tokens, -1, 2), dtype)
    return jnp.concatenate([values, rest], axis=-1)
