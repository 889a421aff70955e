"""Random data for one update of a cache, made on the device: caches that hold anything, NaN and random codes too."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from attn_tune.ops.fields.cache import shape
from attn_tune.ops.paged_append.operands import Operands
from attn_tune.ops.paged_append.problem import Problem

# New tokens are of very different sizes, as those of models are: each is multiplied by up to this power of two.
_POWERS = 4
# Given scales: codes of some tokens are beyond the largest one.
_SCALES = {"float8_e4m3fn": (0.01, 0.04), "int8": (0.05, 0.2)}
# Entries of the table where no new token goes; the first, of a page of another sequence or of none, meets padding.
_GARBAGE = (0, -1, 2**31 - 1)
# The sequence that has no page at the edges. It is not the last one, to which a wrong kernel gives the padding.
_HOMELESS = 5


def make_inputs(problem: Problem, direction: str, seed: int) -> Operands:
    """Inputs of one call, the same for the same seed; may be called under ``jit``.

    Pages lie in random order among some that are no sequence's. The caches hold random values and NaN, or random codes.
    Entries of the table count where new tokens go; all others name no page, or a page of another sequence. At the edges
    one sequence has no page at all, the first token is zero, and of a ragged call padding is NaN.
    """
    p = problem
    keys = jax.random.split(jax.random.key(seed), 7)
    starts = np.concatenate([[0], np.cumsum(p.new_lengths)]).astype(np.int32)
    rows = (p.tokens,) if p.ragged else (p.batch, p.tokens // p.batch)

    def new(key: Array, width: int) -> Array:
        value, size = jax.random.split(key)
        drawn = jax.random.normal(value, (*rows, p.num_kv_heads, width))
        drawn *= 2.0 ** jax.random.randint(size, (*rows, 1, 1), -_POWERS, _POWERS + 1)
        if p.at_edges:
            drawn *= (jnp.arange(p.tokens) > 0).reshape(*rows, 1, 1)
        if p.ragged:
            drawn = jnp.where(jnp.arange(p.tokens)[:, None, None] < starts[-1], drawn, jnp.nan)
        return drawn.astype(p.dtype)

    is_joint = p.layout == "interleaved"
    own = p.kv_scale == "token"
    return Operands(
        new_k=new(keys[0], p.head_dim),
        new_v=new(keys[1], p.v_head_dim),
        k=_cache(p, keys[2], p.head_dim),
        v=None if is_joint else _cache(p, keys[3], p.v_head_dim),
        page_table=_table(p, keys[4]) if p.page_size else None,
        kv_lens=jnp.asarray(p.lengths, jnp.int32),
        cu_q_lens=jnp.asarray(starts) if p.ragged else None,
        k_scale=_own_scales(p, keys[5]) if own else _given_scales(p, keys[5]),
        v_scale=_own_scales(p, keys[6]) if own else _given_scales(p, keys[6]),
    )


def _cache(p: Problem, key: Array, width: int) -> Array:
    sizes = shape(p.layout, *p.input_sizes, p.num_kv_heads, width)
    if p.cache_dtype == p.dtype:
        drawn = jax.random.normal(key, sizes, jnp.dtype(p.dtype))
        return jnp.where(jnp.arange(width) % 5 == 4, jnp.nan, drawn)
    codes = jax.random.bits(key, sizes, jnp.uint8)
    return jax.lax.bitcast_convert_type(codes, jnp.dtype(p.cache_dtype))


def _own_scales(p: Problem, key: Array) -> Array:
    layout = "nhd" if p.layout == "interleaved" else p.layout
    drawn = jax.random.uniform(key, shape(layout, *p.input_sizes, p.num_kv_heads, 1)[:-1])
    return jnp.where(drawn < 0.5, jnp.nan, drawn)


def _given_scales(p: Problem, key: Array) -> Array | None:
    if p.kv_scale == "none":
        return None
    low, high = _SCALES[p.kv_dtype]
    return jax.random.uniform(key, () if p.kv_scale == "tensor" else (p.num_kv_heads,), minval=low, maxval=high)


def _table(p: Problem, key: Array) -> Int[Array, "B width"]:
    pages, _ = p.input_sizes
    table = jax.random.permutation(key, pages)[: p.batch * p.input_width].reshape(p.batch, p.input_width)
    first = jnp.arange(p.input_width) * p.page_size
    lengths, new = (np.asarray(x)[:, None] for x in (p.lengths, p.new_lengths))
    used = (first < lengths) & (first + p.page_size > lengths - new)
    garbage = jnp.asarray(_GARBAGE, jnp.int32)[jnp.arange(p.input_width) % len(_GARBAGE)]
    if p.at_edges and p.batch > 1:
        # Of a sequence whose tokens have nowhere to go no entry names a page.
        homeless = (jnp.arange(p.batch) == min(_HOMELESS, p.batch - 1))[:, None]
        nowhere = jnp.asarray((pages, 2**31 - 1, -1), jnp.int32)[jnp.arange(p.input_width) % 3]
        used, garbage = used & ~homeless, jnp.where(homeless, nowhere, garbage)
    return jnp.where(used, table.astype(jnp.int32), garbage)
