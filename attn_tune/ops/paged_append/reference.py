"""Updating a cache one token after the other: codes before they are rounded as the reference, codes as the baseline."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from attn_tune.ops.fields.cache import CODES, LARGEST_CODE, SMALLEST, axes
from attn_tune.ops.paged_append.operands import Operands
from attn_tune.ops.paged_append.problem import Problem
from attn_tune.ops.typed_jax import fori_loop


def reference(problem: Problem, direction: str, operands: Operands) -> dict[str, Array]:
    """The caches in float32: rows that are left are the operands', codes are quotients that nothing has rounded."""
    return _append(problem, operands, rounds=False)


def baseline(problem: Problem, direction: str, operands: Operands) -> dict[str, Array]:
    """The caches in their own dtypes: quotients are rounded to the nearest code, ties to even ones."""
    return _append(problem, operands, rounds=True)


def _append(p: Problem, o: Operands, *, rounds: bool) -> dict[str, Array]:
    heads, joint = p.num_kv_heads, p.layout == "interleaved"
    new_k, new_v = (x.reshape(-1, heads, x.shape[-1]) for x in (o.new_k, o.new_v))
    names = ["k"] if joint else ["k", "v"]
    if p.kv_scale == "token":
        names += ["k_scale", "v_scale"]
    caches = {name: getattr(o, name) if rounds else getattr(o, name).astype(jnp.float32) for name in names}

    def one(token: Int[Array, ""], caches: dict[str, Array]) -> dict[str, Array]:
        place = _place(p, o, token)
        k, k_scale = _coded(p, new_k[token], o.k_scale, rounds)
        v, v_scale = _coded(p, new_v[token], o.v_scale, rounds)
        rows = {"k": jnp.stack([k, v], axis=1).reshape(2 * heads, -1) if joint else k, "v": v}
        if k_scale is not None and v_scale is not None:
            rows |= {"k_scale": k_scale, "v_scale": v_scale}
        return {name: _put(axes("nhd" if joint else p.layout), x, rows[name], *place) for name, x in caches.items()}

    return fori_loop(0, new_k.shape[0], one, caches)


def _place(p: Problem, o: Operands, token: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""], Bool[Array, ""]]:
    """The page and slot that a new token goes to, and whether it goes anywhere."""
    names = axes(p.layout)
    sizes = dict(zip(names, o.k.shape, strict=False))
    pages, slots = sizes["page"], sizes["slot"]
    if o.cu_q_lens is None:
        count = o.new_k.shape[1]
        sequence, end, valid = token // count, (token // count + 1) * count, True
    else:
        sequence = jnp.sum(o.cu_q_lens[1:] <= token)
        valid = sequence < o.kv_lens.shape[0]
        sequence = jnp.minimum(sequence, o.kv_lens.shape[0] - 1)
        end = o.cu_q_lens[sequence + 1]
    position = o.kv_lens[sequence] - (end - token)
    width = 1 if o.page_table is None else o.page_table.shape[1]
    valid &= (position >= 0) & (position < slots * width)
    position = jnp.clip(position, 0, slots * width - 1)
    page = sequence if o.page_table is None else o.page_table[sequence, position // slots]
    valid &= (page >= 0) & (page < pages)
    return jnp.clip(page, 0, pages - 1), position % slots, valid


def _coded(p: Problem, x: Array, given: Array | None, rounds: bool) -> tuple[Array, Array | None]:
    """A token's keys or values [K, width] as they are stored, and the scales [K] that tokens have."""
    wide = x.astype(jnp.float32)
    if p.cache_dtype not in CODES:
        return (x if rounds else wide), None
    largest, scale = LARGEST_CODE[p.cache_dtype], None
    if p.kv_scale == "token":
        scale = jnp.maximum(jnp.max(jnp.abs(wide), axis=-1), SMALLEST) / largest
        wide = wide / scale[:, None]
    elif given is not None:
        wide = wide / (given[:, None] if p.kv_scale == "head" else given)
    wide = jnp.clip(wide, -largest, largest)
    if not rounds:
        return wide, scale
    return (jnp.round(wide) if p.cache_dtype == "int8" else wide).astype(p.cache_dtype), scale


def _put(
    names: tuple[str, ...], cache: Array, row: Array, page: Int[Array, ""], slot: Int[Array, ""], valid: Bool[Array, ""]
) -> Array:
    """A cache with the row of one token, ``[heads, width]`` or ``[heads]``, written where it is valid."""
    zero = jnp.zeros_like(page)
    index = {"page": page, "slot": slot, "head": zero}
    start = [index[name] for name in names] + [zero] * (cache.ndim - 3)
    sizes = [row.shape[0] if name == "head" else 1 for name in names] + list(cache.shape[3:])
    before = jax.lax.dynamic_slice(cache, start, sizes)
    row = jnp.where(valid, row.reshape(sizes).astype(cache.dtype), before)
    return jax.lax.dynamic_update_slice(cache, row, start)
