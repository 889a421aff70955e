"""Random data for one decoding call, made on the device: caches whose unused parts are poisoned."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn_tune.ops.fields.cache import SAME, axes, shape
from attn_tune.ops.paged_decode.operands import Operands
from attn_tune.ops.paged_decode.problem import Problem

# One key in so many, a prime, so that tiles have them at different places, and how much longer it is than the others.
LONG_KEY_EVERY, LONG_KEY = 61, 6.0
# Codes of normal data, and the range of their scales.
_CODE = {"float8_e4m3fn": 100.0, "int8": 32.0}
_SCALES = (0.005, 0.02)
# Entries of the table behind a sequence's last page.
_GARBAGE = (-1, 2**31 - 1, 0)


def make_inputs(problem: Problem, direction: str, seed: int) -> Operands:
    """Inputs of one call, the same for the same seed; may be called under ``jit``.

    Queries, keys and values are standard normal; of odd seeds some keys are much longer, so that the running maximum
    of a row moves late and far, but not under a soft cap. Sequences have the workload's lengths in random order, and
    their pages lie in random order among some that are no sequence's. All that no query sees is poisoned: tokens behind
    a sequence and before its window, whole pages, their scales, and their entries in the table.
    """
    p, dtype = problem, jnp.dtype(problem.dtype)
    keys = jax.random.split(jax.random.key(seed), 9)
    lengths = jax.random.permutation(keys[0], jnp.asarray(p.lengths, jnp.int32))
    pages, slots = p.cache_sizes
    if p.page_size:
        order = jax.random.permutation(keys[1], jnp.arange(pages, dtype=jnp.int32))
        owned = p.batch * p.table_width
        place = jnp.zeros(pages, jnp.int32).at[order].set(jnp.arange(pages, dtype=jnp.int32))
        sequence, first = place // p.table_width, place % p.table_width * slots
        length = jnp.where(place < owned, lengths[jnp.minimum(sequence, p.batch - 1)], 0)
    else:
        length, first = lengths, jnp.zeros(pages, jnp.int32)
    token = first[:, None] + jnp.arange(slots)
    seen = _is_seen(p, token, length[:, None])
    longer = (token % LONG_KEY_EVERY == LONG_KEY_EVERY // 2) & (seed % 2 == 1) & (p.soft_cap is None)
    is_apart = p.layout != "interleaved"
    k = _cache(p, keys[2], p.head_dim, jnp.where(longer, LONG_KEY, 1.0), seen)
    v = _cache(p, keys[3], p.v_head_dim, jnp.ones_like(token, jnp.float32), seen)
    if not is_apart:
        k, v = jnp.stack([k, v], axis=3).reshape(shape(p.layout, pages, slots, p.num_kv_heads, p.head_dim)), None
    return Operands(
        q=jax.random.normal(keys[4], (p.batch, p.q_len, p.num_q_heads, p.head_dim)).astype(dtype),
        k=k,
        v=v,
        page_table=_table(p, order, lengths) if p.page_size else None,
        kv_lens=lengths,
        sinks=_sinks(p, keys[5]) if p.has_sinks else None,
        k_scale=_scales(p, keys[6], seen),
        v_scale=_scales(p, keys[7], seen),
    )


def _is_seen(p: Problem, token: Int[Array, "..."], length: Int[Array, "..."]) -> Bool[Array, "..."]:
    seen = token < length
    return seen if p.window is None else seen & (token >= length - p.q_len - p.window)


def _cache(
    p: Problem, key: Array, width: int, factor: Float[Array, "pages slots"], seen: Bool[Array, "pages slots"]
) -> Array:
    """Keys or values; those that ``interleaved`` joins are still apart."""
    layout = "nhd" if p.layout == "interleaved" else p.layout
    drawn = jax.random.normal(key, shape(layout, *p.cache_sizes, p.num_kv_heads, width), jnp.dtype(p.dtype))
    drawn = drawn * _spread(layout, factor)[..., None].astype(drawn.dtype)
    seen = _spread(layout, seen)[..., None]
    if p.kv_dtype == SAME:
        return jnp.where(seen, drawn, jnp.nan)
    codes = drawn * (1.0 if p.kv_scale == "none" else _CODE[p.kv_dtype])
    if p.kv_dtype == "int8":
        return jnp.where(seen, jnp.clip(jnp.round(codes), -127, 127), 127).astype(jnp.int8)
    return jnp.where(seen, jnp.clip(codes, -448, 448), jnp.nan).astype(p.kv_dtype)


def _spread(layout: str, x: Array) -> Array:
    """A value a page and slot, for the cache's axes but the last."""
    order = [axis for axis in axes(layout) if axis != "head"]
    x = x if order == ["page", "slot"] else x.T
    return jnp.expand_dims(x, axes(layout).index("head"))


def _scales(p: Problem, key: Array, seen: Bool[Array, "pages slots"]) -> Array | None:
    low, high = _SCALES
    if p.kv_scale == "none":
        return None
    if p.kv_scale != "token":
        return jax.random.uniform(key, () if p.kv_scale == "tensor" else (p.num_kv_heads,), minval=low, maxval=high)
    layout = "nhd" if p.layout == "interleaved" else p.layout
    drawn = jax.random.uniform(key, shape(layout, *p.cache_sizes, p.num_kv_heads, 1)[:-1], minval=low, maxval=high)
    return jnp.where(_spread(layout, seen), drawn, jnp.nan)


def _table(p: Problem, order: Int[Array, " pages"], lengths: Int[Array, " B"]) -> Int[Array, "B width"]:
    table = order[: p.batch * p.table_width].reshape(p.batch, p.table_width)
    first = jnp.arange(p.table_width) * p.page_size
    used = first < lengths[:, None]
    if p.window is not None:
        used &= first + p.page_size > lengths[:, None] - p.q_len - p.window
    garbage = jnp.asarray(_GARBAGE, jnp.int32)[jnp.arange(p.table_width) % len(_GARBAGE)]
    return jnp.where(used, table, garbage)


def _sinks(p: Problem, key: Array) -> Float[Array, " N"]:
    visible = p.kv_len if p.window is None else p.window + 1
    return jnp.log(jnp.float32(visible)) + jax.random.normal(key, (p.num_q_heads,))
