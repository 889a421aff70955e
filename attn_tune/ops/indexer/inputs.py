"""Random data for one call, made on the device; keys in no query's range are poisoned."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from attn_tune.ops.indexer.operands import Operands
from attn_tune.ops.indexer.problem import Problem

# Kinds of ranges at the edges: as usual, from the middle, one key, nothing at all, backwards, and far beyond both ends.
_KINDS = 6
# Keys at the end that no query scores at the edges, where there are more.
_UNSEEN = 9


def make_inputs(problem: Problem, direction: str, seed: int) -> Operands:
    """Inputs of one call, the same for the same seed; may be called under ``jit``.

    Queries, keys and weights are standard normal, so that scores have both signs. At the edges the kinds of ranges take
    turns, the last keys are in none, and every other query's range goes beyond its own place, which no workload
    promises that it does not. Keys in no query's range are not numbers.
    """
    p = problem
    keys = jax.random.split(jax.random.key(seed), 3)
    starts, ends = _ranges(p)
    token = jnp.arange(p.kv_len)
    # Between the lowest start and the highest end there may be keys in no range; they stay numbers.
    some = ends > starts
    first = jnp.min(jnp.where(some, starts, p.kv_len), axis=1)[:, None]
    last = jnp.max(jnp.where(some, ends, 0), axis=1)[:, None]
    seen = (token >= first) & (token < last)
    k = jax.random.normal(keys[1], (p.batch, p.kv_len, p.head_dim), jnp.dtype(p.dtype))
    return Operands(
        q=jax.random.normal(keys[0], (p.batch, p.q_len, p.num_q_heads, p.head_dim), jnp.dtype(p.dtype)),
        k=jnp.where(seen[..., None], k, jnp.nan),
        weights=jax.random.normal(keys[2], (p.batch, p.q_len, p.num_q_heads)),
        starts=starts,
        ends=ends,
    )


def _ranges(p: Problem) -> tuple[Int[Array, "B T"], Int[Array, "B T"]]:
    shape = (p.batch, p.q_len)
    most = p.kv_len - _UNSEEN if p.at_edges and p.kv_len > _UNSEEN else p.kv_len
    ends = [most if p.at_edges and query % 2 else min(p.visible(query), most) for query in range(p.q_len)]
    ends = jnp.broadcast_to(jnp.asarray(ends, jnp.int32), shape)
    starts = jnp.zeros(shape, jnp.int32)
    if not p.at_edges:
        return starts, ends
    row = jnp.arange(p.batch * p.q_len, dtype=jnp.int32).reshape(shape)
    kind = row % _KINDS
    middle = ends // 2
    kinds = [(kind == 1) | (kind == 2), (kind == 3) | (kind == 4), kind == 5]
    starts = jnp.select(kinds, [middle, ends, jnp.full(shape, -(2**31), jnp.int32)], 0)
    ends = jnp.select([kind == 2, kind == 4], [jnp.minimum(middle + 1, ends), middle], ends)
    if most == p.kv_len:
        ends = jnp.where(kind == 5, 2**31 - 1, ends)
    return starts.astype(jnp.int32), ends.astype(jnp.int32)
