"""Random data for one call, made on the device; keys that no query names are poisoned."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_tune.ops.fields.long_keys import key_factors
from attn_tune.ops.fields.unusual_values import without_first_sink
from attn_tune.ops.sparse_mla.operands import Operands
from attn_tune.ops.sparse_mla.problem import Problem

# Kinds of rows at the edges: as usual, nothing is named, every other index names nothing, a key fills half of the row,
# all indices name one key, most of the first ones name nothing.
_KINDS = 6
_GARBAGE = (-1, 2**31 - 1, -(2**31))


def make_inputs(problem: Problem, direction: str, seed: int) -> Operands:
    """Inputs of one call, the same for the same seed; may be called under ``jit``.

    Queries and keys are standard normal; of odd seeds some keys are much longer, so that the running maximum of a row
    moves late and far. A query names each key once, in an order of the seed, and behind those that there are nothing,
    at places of the seed. At the edges the kinds of rows take turns. Keys that no query names are not numbers.
    """
    p = problem
    keys = jax.random.split(jax.random.key(seed), 5)
    indices = drawn_indices(p, keys[0])
    token = jnp.arange(p.kv_len)
    drawn = jax.random.normal(keys[2], (p.batch, p.kv_len, p.head_dim), jnp.dtype(p.dtype))
    drawn *= key_factors(token, seed, little=p.dtype == "float32")[:, None].astype(drawn.dtype)
    row = jnp.arange(p.batch)[:, None, None]
    # Beyond the end, where an update is dropped; -1 would be the last key.
    place = jnp.where((indices >= 0) & (indices < p.kv_len), indices, p.kv_len)
    named = jnp.zeros((p.batch, p.kv_len), bool).at[row, place].set(True, mode="drop")
    sinks: Float[Array, " N"] | None = None
    if p.has_sinks:
        sinks = jnp.log(jnp.float32(p.num_selected)) + jax.random.normal(keys[3], (p.num_q_heads,))
        sinks = without_first_sink(sinks, p.at_edges)
    return Operands(
        q=jax.random.normal(keys[1], (p.batch, p.q_len, p.num_q_heads, p.head_dim), jnp.dtype(p.dtype)),
        kv=jnp.where(named[..., None], drawn, jnp.nan),
        indices=indices,
        sinks=sinks,
    )


def drawn_indices(problem: Problem, key: Array) -> Int[Array, "B T top"]:
    """The indices of all queries: one key from each of equal parts of those that a query selects from."""
    p = problem
    parts, order = jax.random.split(key)
    shares = jax.random.uniform(parts, (p.batch, p.q_len, p.num_selected))
    found = jnp.asarray([p.selectable(query) for query in range(p.q_len)], jnp.int32)[:, None]
    count = jnp.minimum(found, p.num_selected)
    whole, rest = found // jnp.maximum(count, 1), found % jnp.maximum(count, 1)

    def begin(part: Int[Array, " top"]) -> Int[Array, "T top"]:
        # In two terms, since the product of a length and a number of keys may not fit 32 bits.
        return part * whole + part * rest // jnp.maximum(count, 1)

    part = jax.random.permutation(order, jnp.arange(p.num_selected, dtype=jnp.int32))
    first = begin(part)
    width = begin(part + 1) - first
    inside = jnp.minimum((shares * width).astype(jnp.int32), width - 1)
    garbage = jnp.asarray(_GARBAGE, jnp.int32)[part % len(_GARBAGE)] if p.at_edges else jnp.full_like(part, -1)
    indices = jnp.where(part < count, first + inside, garbage)
    return _with_edges(p, indices, garbage) if p.at_edges else indices


def _with_edges(p: Problem, indices: Int[Array, "B T top"], garbage: Int[Array, " top"]) -> Int[Array, "B T top"]:
    row = jnp.arange(p.batch * p.q_len).reshape(p.batch, p.q_len, 1)
    kind, column = row % _KINDS, jnp.arange(p.num_selected)
    nothing = (kind == 1) | ((kind == 2) & (column % 2 == 0)) | ((kind == 5) & (column < p.num_selected * 3 // 4))
    chosen = jnp.where((kind == 3) & (column % 2 == 0), indices[..., :1], indices)
    chosen = jnp.where(kind == 4, row % p.kv_len, chosen)
    return jnp.where(nothing, jnp.where(garbage == 2**31 - 1, p.kv_len + row, garbage), chosen)
