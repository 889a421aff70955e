"""Random caches on the device, whose unused parts are poisoned."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn_tune.ops.fields.cache import BLOCK, COLUMNS, JOINT, LATENT, SAME, axes, shape
from attn_tune.ops.fields.long_keys import key_factors
from attn_tune.ops.fields.unusual_values import without_first_sink

# How much longer the only key of a sequence is: all logits of some rows are so far below zero that their exponentials
# vanish, and none so far from it that float32 rounds an lse by more than is allowed.
_LONE_KEY = 80.0
# Codes of normal data, and the range of their scales.
_CODE = {"float8_e4m3fn": 100.0, "int8": 32.0}
_SCALES = (0.005, 0.02)
# Entries of the table behind a sequence's last page.
_GARBAGE = (-1, 2**31 - 1, 0)


def draw_cache(
    problem: Any, keys: Array, lengths: Int[Array, " B"], first: Int[Array, " B"], *, seed: int
) -> dict[str, Any]:
    """``k``, ``v``, ``page_table``, ``k_scale`` and ``v_scale`` of a problem over a cache, the same for the same keys.

    Keys and values are standard normal; of odd seeds some keys are much longer, so that the running maximum of a row
    moves late and far, and in 16 bits the exponential of a logit would overflow, or those of a row vanish; but not
    under a soft cap. Pages of sequences lie in random order among some that are no sequence's; at the edges two of them
    share their first page. Tokens before ``first`` and from ``lengths`` on are poisoned, whole pages too, with their
    scales and their entries in the table.

    Args:
      keys: five random keys.
      lengths: the tokens of each sequence.
      first: the first token of each sequence that a query sees.
    """
    p = problem
    pages, slots = p.input_sizes
    if p.page_size:
        order = jax.random.permutation(keys[0], jnp.arange(pages, dtype=jnp.int32))
        owned = p.batch * p.input_width
        place = jnp.zeros(pages, jnp.int32).at[order].set(jnp.arange(pages, dtype=jnp.int32))
        sequence, begin = jnp.minimum(place // p.input_width, p.batch - 1), place % p.input_width * slots
        length, first_seen = jnp.where(place < owned, lengths[sequence], 0), first[sequence]
        table = order[:owned].reshape(p.batch, p.input_width)
        begins = jnp.arange(p.input_width) * slots
        used = (begins < lengths[:, None]) & (begins + slots > first[:, None])
        garbage = jnp.asarray(_GARBAGE, jnp.int32)[jnp.arange(p.input_width) % len(_GARBAGE)]
        table = jnp.where(used, _shared(table, (lengths >= slots) & (first <= 0)) if p.at_edges else table, garbage)
    else:
        length, begin, first_seen, table = lengths, jnp.zeros(pages, jnp.int32), first, None
    token = begin[:, None] + jnp.arange(slots)
    seen = (token < length[:, None]) & (token >= first_seen[:, None])
    k = _cache(p, keys[1], p.head_dim, _key_factors(p, token, length[:, None], seed), seen)
    k_scale = _scales(p, keys[3], seen)
    if p.layout == LATENT:
        return {"k": k, "v": None, "page_table": table, "k_scale": k_scale, "v_scale": k_scale}
    v = _cache(p, keys[2], p.v_head_dim, jnp.ones_like(token, jnp.float32), seen)
    if p.layout == "interleaved":
        k, v = jnp.stack([k, v], axis=3).reshape(shape(p.layout, pages, slots, p.num_kv_heads, p.head_dim)), None
    return {"k": k, "v": v, "page_table": table, "k_scale": k_scale, "v_scale": _scales(p, keys[4], seen)}


def _shared(table: Int[Array, "B width"], is_whole: Bool[Array, " B"]) -> Int[Array, "B width"]:
    """A table of pages in which the last sequence that ``is_whole`` begins with the first page of the first one."""
    last = is_whole.shape[0] - 1 - jnp.argmax(is_whole[::-1])
    first = jnp.where(is_whole.any(), jnp.argmax(is_whole), last)
    return table.at[last, 0].set(table[first, 0])


def _key_factors(
    p: Any, token: Int[Array, "pages slots"], length: Int[Array, "pages 1"], seed: int
) -> Float[Array, "pages slots"]:
    """Factors of the length of each key."""
    if p.soft_cap is not None:
        return jnp.ones(token.shape)
    little = p.kv_dtype != SAME or p.dtype == "float32"
    factors = key_factors(token, seed, little=little)
    return factors if little else jnp.where((length == 1) & (seed % 2 == 1), _LONE_KEY, factors)


def draw_sinks(problem: Any, key: Array) -> Float[Array, " N"]:
    """Sinks that weigh about as much as all keys that the longest sequence's last query sees.

    At the edges the first one is minus infinity, which is none.
    """
    p = problem
    visible = p.kv_len if p.window is None else p.window + 1
    return without_first_sink(jnp.log(jnp.float32(visible)) + jax.random.normal(key, (p.num_q_heads,)), p.at_edges)


def _cache(
    p: Any, key: Array, width: int, factor: Float[Array, "pages slots"], seen: Bool[Array, "pages slots"]
) -> Array:
    """Keys or values; those that ``interleaved`` joins are still apart."""
    layout = "nhd" if p.layout in JOINT else p.layout
    pages, slots = p.input_sizes
    drawn = jax.random.normal(key, shape(layout, pages, slots, p.num_kv_heads, width), jnp.dtype(p.dtype))
    drawn = drawn * _spread(layout, factor)[..., None].astype(drawn.dtype)
    seen = _spread(layout, seen)[..., None]
    if p.kv_dtype == SAME:
        return jnp.where(seen, drawn, jnp.nan)
    if p.kv_scale == BLOCK:
        return jnp.where(seen, _packed(p, key, drawn), jnp.uint8(0xFF))
    return _codes(p, drawn * (1.0 if p.kv_scale == "none" else _CODE[p.kv_dtype]), seen)


def draw_query_codes(
    problem: Any, key: Array, q: Float[Array, "tokens N H"], seen: Bool[Array, " tokens"]
) -> tuple[Array, Array]:
    """Codes of normal queries in the cache's dtype, and their random scales; both are poisoned where not ``seen``.

    Args:
      key: a random key, for the scales.
    """
    p, (low, high) = problem, _SCALES
    codes = _codes(p, q * _CODE[p.kv_dtype], seen[:, None, None])
    if p.q_scale == "tensor":
        return codes, jax.random.uniform(key, (), minval=low, maxval=high)
    return codes, jnp.where(seen[:, None], jax.random.uniform(key, q.shape[:2], minval=low, maxval=high), jnp.nan)


def _codes(p: Any, values: Array, seen: Bool[Array, "..."]) -> Array:
    """The nearest codes of the cache's dtype, poisoned where not ``seen``."""
    if p.kv_dtype == "int8":
        return jnp.where(seen, jnp.clip(jnp.round(values), -127, 127), 127).astype(jnp.int8)
    return jnp.where(seen, jnp.clip(values, -448, 448), jnp.nan).astype(p.kv_dtype)


def _packed(p: Any, key: Array, drawn: Float[Array, "*tokens H"]) -> Array:
    """Bytes of tokens whose values are codes with random scales; all ones are NaN in each part."""
    codes = jnp.clip(drawn[..., : p.v_head_dim] * _CODE[p.kv_dtype], -448, 448).astype(p.kv_dtype)
    shape = (*drawn.shape[:-1], p.v_head_dim // COLUMNS)
    scales = jax.random.uniform(jax.random.fold_in(key, 1), shape, minval=_SCALES[0], maxval=_SCALES[1])
    parts = (codes, scales, drawn[..., p.v_head_dim :])
    return jnp.concatenate([_bytes_of(part) for part in parts if part.shape[-1]], axis=-1)


def _bytes_of(x: Array) -> Array:
    """The bytes of numbers, side by side on the last axis."""
    found = jax.lax.bitcast_convert_type(x, jnp.uint8)
    return found if found.ndim == x.ndim else found.reshape(*x.shape[:-1], -1)


def _spread(layout: str, x: Array) -> Array:
    """A value a page and slot, for the cache's axes but the last."""
    order = [axis for axis in axes(layout) if axis != "head"]
    x = x if order == ["page", "slot"] else x.T
    return jnp.expand_dims(x, axes(layout).index("head"))


def _scales(p: Any, key: Array, seen: Bool[Array, "pages slots"]) -> Array | None:
    low, high = _SCALES
    if p.kv_scale in ("none", BLOCK):
        return None
    if p.kv_scale != "token":
        return jax.random.uniform(key, () if p.kv_scale == "tensor" else (p.num_kv_heads,), minval=low, maxval=high)
    layout = "nhd" if p.layout in JOINT else p.layout
    pages, slots = p.input_sizes
    drawn = jax.random.uniform(key, shape(layout, pages, slots, p.num_kv_heads, 1)[:-1], minval=low, maxval=high)
    return jnp.where(_spread(layout, seen), drawn, jnp.nan)
