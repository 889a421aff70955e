"""For each block of keys the queries that name it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from attn_tune.ops.native_sparse_attention.blocks import Blocks
from attn_tune.ops.native_sparse_attention.operands import Operands
from attn_tune.ops.native_sparse_attention.problem import Problem


class Lists(NamedTuple):
    """For each block of each key head the queries that name it, in order. A block is ``(b K + k) nb + number``.

    Attributes:
      queries: numbers ``b T + t`` of queries, as often as they name the block.
      starts: the place of each block's first entry, and of the end of the last block's.
    """

    queries: Int[Array, " entries"]
    starts: Int[Array, " blocks_and_one"]


def lists_of(problem: Problem, operands: Operands, blocks: Blocks) -> Lists:
    """The lists of a call: one stable sort of all entries by their block, so that equal inputs give equal lists."""
    p = problem
    total = p.rows * p.num_kv_heads * p.blocks
    # Of the query's sequence; below zero where the query stands before its first key.
    position = jnp.arange(p.q_len, dtype=jnp.int32) + p.offset - blocks.firsts
    last = jnp.where(position < 0, -1, position // p.block_size)[:, None, None]
    known = (operands.indices >= 0) & (operands.indices <= last)
    row = jnp.arange(p.rows, dtype=jnp.int32)[:, None, None, None]
    head = jnp.arange(p.num_kv_heads, dtype=jnp.int32)[:, None]
    number = (row * p.num_kv_heads + head) * p.blocks + blocks.numbers[:, None, None] + operands.indices
    owner = jnp.where(known, number, total)
    query = jnp.arange(p.rows * p.q_len, dtype=jnp.int32).reshape(p.rows, p.q_len, 1, 1)
    # XLA has a radix sort for unsigned keys with one value each.
    keys, queries = jax.lax.sort(
        (owner.astype(jnp.uint32).ravel(), jnp.broadcast_to(query, owner.shape).ravel()), num_keys=1, is_stable=True
    )
    places = jnp.arange(total + 1, dtype=jnp.uint32)
    starts = jnp.searchsorted(keys, places, method="scan_unrolled").astype(jnp.int32)
    return Lists(queries, starts)
