"""The keys and values of one sequence of a cache, in order and dequantised."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_tune.ops.fields.cache import SAME, axes


def sequence_of(
    problem: Any, operands: Any, index: Int[Array, ""], dtype: jnp.dtype
) -> tuple[Float[Array, "S K H"], Float[Array, "S K V"]]:
    """The keys and values of a sequence in order, dequantised; the numbers of pages that do not exist are cut off."""
    p, o = problem, operands
    names = axes(p.layout)
    pages = index[None] if o.page_table is None else o.page_table[index]

    def ordered(x: Array, names: tuple[str, ...]) -> Array:
        x = jnp.take(x, pages, axis=names.index("page"), mode="clip")
        x = jnp.moveaxis(x, [names.index(name) for name in ("page", "slot", "head")], [0, 1, 2])
        return x.reshape(-1, *x.shape[2:])

    k = ordered(o.k, names)
    k, v = (k[:, 0::2], k[:, 1::2]) if o.v is None else (k, ordered(o.v, names))
    if p.kv_dtype == SAME:
        return k.astype(dtype), v.astype(dtype)

    def dequantised(codes: Array, scale: Array | None) -> Array:
        wide = codes.astype(jnp.float32)
        if p.kv_scale == "token" and scale is not None:
            wide *= ordered(scale, axes("nhd") if o.v is None else names)[..., None]
        elif scale is not None:
            wide *= scale if p.kv_scale == "tensor" else scale[:, None]
        return wide.astype(dtype)

    return dequantised(k, o.k_scale), dequantised(v, o.v_scale)
