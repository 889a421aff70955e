"""Code of both directions: the keys and values that one query names, gathered, and their logits."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn_tune.ops.native_sparse_attention.blocks import Blocks
from attn_tune.ops.native_sparse_attention.operands import Operands
from attn_tune.ops.native_sparse_attention.problem import Problem


class Named(NamedTuple):
    """The keys and values that the queries of one token see, for each key head.

    Attributes:
      k, v: keys and values, zero where nothing is named.
      valid: the keys that are seen.
    """

    k: Float[Array, "K L H"]
    v: Float[Array, "K L V"]
    valid: Bool[Array, "K L"]


def product(problem: Problem, spec: str, x: Array, y: Array) -> Array:
    """A product of the problem's dtype, accumulated in float32."""
    precision = "highest" if problem.dtype == "float32" else None
    return jnp.einsum(spec, x, y, precision=precision, preferred_element_type=jnp.float32)


def named_by(problem: Problem, operands: Operands, blocks: Blocks, row: Int[Array, ""], query: Int[Array, ""]) -> Named:
    """The keys and values that query ``query`` of row ``row`` names."""
    p, o = problem, operands
    first = blocks.firsts[query]
    position = query + p.offset - first
    indices = o.indices[row, query]
    known = (indices >= 0) & (indices <= jnp.where(position < 0, -1, position // p.block_size))
    inside = jnp.where(known, indices, 0)[..., None] * p.block_size + jnp.arange(p.block_size)
    valid = (known[..., None] & (inside <= position)).reshape(p.num_kv_heads, -1)
    token = jnp.where(valid, first + inside.reshape(p.num_kv_heads, -1), 0)
    head = jnp.arange(p.num_kv_heads)[:, None]

    def gathered(x: Array) -> Array:
        return jnp.where(valid[..., None], x[row, token, head], jnp.zeros((), x.dtype))

    return Named(gathered(o.k), gathered(o.v), valid)


def map_queries[T](problem: Problem, rows: int, function: Callable[[tuple[Array, ...]], T], *arrays: Array) -> T:
    """The results ``[B T, ...]`` of ``function((row, query, *entries))`` for all queries, ``rows`` at a time."""
    p = problem
    row = jnp.repeat(jnp.arange(p.rows, dtype=jnp.int32), p.q_len)
    query = jnp.tile(jnp.arange(p.q_len, dtype=jnp.int32), p.rows)
    each = (row, query, *(x.reshape(-1, p.num_kv_heads, p.group_size, *x.shape[3:]) for x in arrays))
    return jax.lax.map(function, each, batch_size=min(rows, p.rows * p.q_len))
