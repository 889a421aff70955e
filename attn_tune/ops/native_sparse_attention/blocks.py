"""The blocks of keys of a call, numbered over all sequences that are packed into one."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from attn_tune.ops.native_sparse_attention.problem import Problem


class Blocks(NamedTuple):
    """The blocks of one row of the arrays, ``nb`` at most (``Problem.blocks``).

    Attributes:
      firsts: for each query the first token of its sequence; beyond all tokens where it has none.
      numbers: for each query the number of the first block of its sequence.
      begins, ends: for each block its first token, and the one behind its last; equal for numbers that are no block.
    """

    firsts: Int[Array, " T"]
    numbers: Int[Array, " T"]
    begins: Int[Array, " nb"]
    ends: Int[Array, " nb"]


def blocks_of(problem: Problem, cu_seqlens: Int[Array, " ends"] | None) -> Blocks:
    """The blocks of a call."""
    p, size = problem, problem.block_size
    block, query = jnp.arange(p.blocks, dtype=jnp.int32), jnp.arange(p.q_len, dtype=jnp.int32)
    if cu_seqlens is None:
        zeros = jnp.zeros_like(query)
        return Blocks(zeros, zeros, block * size, jnp.minimum((block + 1) * size, p.kv_len))
    counts = (jnp.diff(cu_seqlens) + size - 1) // size
    before = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(counts, dtype=jnp.int32)])
    # The last sequence that begins at or before a token is its own, for empty ones have none.
    sequence = _last_at_most(cu_seqlens[:-1], query)
    is_token = query < cu_seqlens[-1]
    owner = _last_at_most(before[:-1], block)
    begins = cu_seqlens[owner] + (block - before[owner]) * size
    ends = jnp.minimum(begins + size, cu_seqlens[owner + 1])
    return Blocks(
        firsts=jnp.where(is_token, cu_seqlens[sequence], p.kv_len + 1),
        numbers=jnp.where(is_token, before[sequence], 0),
        begins=begins,
        ends=jnp.where(block < before[-1], ends, begins),
    )


def _last_at_most(sorted_values: Int[Array, " n"], wanted: Int[Array, " m"]) -> Int[Array, " m"]:
    """The index of the last of the values that is at most what is wanted."""
    return jnp.searchsorted(sorted_values, wanted, side="right", method="scan_unrolled").astype(jnp.int32) - 1
