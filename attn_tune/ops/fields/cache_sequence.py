"""Attention over one sequence of a cache, without blocks: what references are made of."""

# JAX declares no types of some functions that stand here.
# pyright: reportUnknownMemberType=false

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn_tune.ops.fields.cache import BLOCK, COLUMNS, LATENT, SAME, axes


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
    if p.kv_scale == BLOCK:
        k = _unpacked(p, k)
        return k.astype(dtype), k[..., : p.v_head_dim].astype(dtype)
    if p.layout == LATENT:
        v = k[..., : p.v_head_dim]
    else:
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


def _unpacked(problem: Any, rows: Array) -> Float[Array, "... H"]:
    """The keys, in float32, of tokens that are bytes: codes of values, their scales, and what is behind in 16 bits."""
    p, lead = problem, rows.shape[:-1]
    codes, scales, rest = jnp.split(rows, [p.v_head_dim, p.v_head_dim + p.v_head_dim // COLUMNS * 4], axis=-1)
    values = jax.lax.bitcast_convert_type(codes, jnp.dtype(p.kv_dtype)).astype(jnp.float32)
    factors = jax.lax.bitcast_convert_type(scales.reshape(*lead, -1, 4), jnp.float32)
    behind = jax.lax.bitcast_convert_type(rest.reshape(*lead, -1, 2), jnp.dtype(p.dtype)).astype(jnp.float32)
    return jnp.concatenate([values * jnp.repeat(factors, COLUMNS, axis=-1), behind], axis=-1)


def attend(
    problem: Any,
    sinks: Float[Array, " N"] | None,
    q: Float[Array, "T N H"],
    k: Float[Array, "S K H"],
    v: Float[Array, "S K V"],
    visible: Bool[Array, "T S"],
) -> tuple[Float[Array, "T N V"], Float[Array, "T N"]]:
    """The output and the lse of queries, in float32; zero and minus infinity, or the sink, where nothing is visible.

    Products are those of the arrays' dtype, of float32 at the highest precision; weights are rounded to it.
    """
    p, dtype = problem, k.dtype
    precision = "highest" if dtype == jnp.float32 else None
    # What no query sees may be NaN, which no product with zero removes.
    seen = jnp.any(visible, axis=0)[:, None, None]
    k, v = jnp.where(seen, k, 0), jnp.where(seen, v, 0)
    q = q.astype(dtype).reshape(q.shape[0], p.num_kv_heads, p.group_size, p.head_dim)
    logits = jnp.einsum("tkgh,skh->tkgs", q, k, preferred_element_type=jnp.float32, precision=precision) * p.scale
    if p.soft_cap is not None:
        logits = p.soft_cap * jnp.tanh(logits / p.soft_cap)
    logits = jnp.where(visible[:, None, None, :], logits, -jnp.inf)
    if sinks is not None:
        column = jnp.broadcast_to(sinks.reshape(1, p.num_kv_heads, p.group_size, 1), (*logits.shape[:-1], 1))
        logits = jnp.concatenate([logits, column], axis=-1)
    lse = jax.nn.logsumexp(logits, axis=-1)
    weights = jnp.exp(logits - jnp.where(jnp.isneginf(lse), 0.0, lse)[..., None])[..., : k.shape[0]]
    out = jnp.einsum(
        "tkgs,skv->tkgv", weights.astype(dtype), v, preferred_element_type=jnp.float32, precision=precision
    )
    return out.reshape(q.shape[0], p.num_q_heads, -1), lse.reshape(q.shape[0], p.num_q_heads)
