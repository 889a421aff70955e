"""Updates of a cache in plain JAX: one scatter an array, in place where the caller donates the cache."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from attn_tune.kernels.paged_append.xla.config import Config
from attn_tune.ops.fields.cache import CODES, LARGEST_CODE, SMALLEST, sizes_of
from attn_tune.ops.paged_append.operands import Operands
from attn_tune.ops.paged_append.problem import Problem


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, Array]:
    """The caches ``k`` and ``v`` and, where tokens have scales, ``k_scale`` and ``v_scale``."""
    p, o = problem, operands
    joint = p.layout == "interleaved"
    page, slot = _places(p, o)
    k, k_scale = _stored(p, o.new_k, o.k_scale)
    v, v_scale = _stored(p, o.new_v, o.v_scale)
    rows = {"k": jnp.stack([k, v], axis=-2).reshape(*k.shape[:-2], -1, k.shape[-1])} if joint else {"k": k, "v": v}
    if k_scale is not None and v_scale is not None:
        rows |= {"k_scale": k_scale, "v_scale": v_scale}
    layout = "nhd" if joint else p.layout
    return {name: _scattered(layout, getattr(o, name), page, slot, new) for name, new in rows.items()}


def _places(p: Problem, o: Operands) -> tuple[Int[Array, "..."], Int[Array, "..."]]:
    """The page and slot of each new token; a page behind the last one where a token goes nowhere."""
    sizes = sizes_of(p.layout, o.k.shape)
    pages, slots = sizes["page"], sizes["slot"]
    batch = o.kv_lens.shape[0]
    if o.cu_q_lens is None:
        new = o.new_k.shape[1]
        sequence = jnp.arange(batch)[:, None]
        position = o.kv_lens[:, None] - new + jnp.arange(new)
    else:
        token = jnp.arange(o.new_k.shape[0])
        sequence = jnp.searchsorted(o.cu_q_lens[1:], token, side="right", method="scan_unrolled")
        ends = jnp.minimum(sequence, batch - 1)
        position = jnp.where(sequence < batch, o.kv_lens[ends] - o.cu_q_lens[ends + 1] + token, -1)
        sequence = ends
    width = 1 if o.page_table is None else o.page_table.shape[1]
    column = jnp.clip(position // slots, 0, width - 1)
    page = jnp.broadcast_to(sequence, position.shape) if o.page_table is None else o.page_table[sequence, column]
    valid = (position >= 0) & (position < slots * width) & (page >= 0) & (page < pages)
    return jnp.where(valid, page, pages), jnp.where(valid, position % slots, 0)


def _stored(p: Problem, new: Array, given: Array | None) -> tuple[Array, Array | None]:
    """New keys or values as they are stored, and the scales that tokens have."""
    if p.cache_dtype not in CODES:
        return new, None
    wide, largest, scale = new.astype(jnp.float32), LARGEST_CODE[p.cache_dtype], None
    if p.kv_scale == "token":
        scale = jnp.maximum(jnp.max(jnp.abs(wide), axis=-1), SMALLEST) / largest
        wide = wide / scale[..., None]
    elif given is not None:
        wide = wide / (given[:, None] if p.kv_scale == "head" else given)
    wide = jnp.clip(wide, -largest, largest)
    return (jnp.round(wide) if p.cache_dtype == "int8" else wide).astype(p.cache_dtype), scale


def _scattered(layout: str, cache: Array, page: Array, slot: Array, rows: Array) -> Array:
    """A cache with the rows of tokens, ``[..., heads, width]`` or ``[..., heads]``; without those of no page."""
    if layout == "hnd":
        return cache.at[page, :, slot].set(rows, mode="drop")
    if layout == "head_first":
        return cache.at[:, page, slot].set(jnp.moveaxis(rows, page.ndim, 0), mode="drop")
    return cache.at[page, slot].set(rows, mode="drop")
