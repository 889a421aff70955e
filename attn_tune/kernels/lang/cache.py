"""Tokens of a cache in plain JAX."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from attn_tune.ops.fields.cache import SAME, sizes_of


def gathered(
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
