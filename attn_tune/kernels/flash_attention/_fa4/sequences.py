"""Sequences end to end, as FlashAttention-4's kernels take them: by their offsets, with tiles that begin with each."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Int32

from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem

# More sequences than one for so many tokens and some would leave most of their own tiles empty, and the sums of
# gradients, which are padded to whole tiles, several times as large: these share tiles (``tiles.py``).
_TOKENS_A_SEQUENCE, _SOME = 128, 8


def taken_apart(problem: Problem, operands: Operands) -> tuple[Problem, Operands, tuple[Int32[Array, "2 R"], ...]]:
    """The problem of each sequence, queries, keys and values without the batch of one, and ``offsets_of``.

    Problem and operands are as they were where there are no offsets.
    """
    offsets = offsets_of(problem, operands)
    if not offsets:
        return problem, operands, ()
    without_ids = dataclasses.replace(problem, has_segments=False, has_positions=False, has_offsets=False)
    return without_ids, operands._replace(q=operands.q[0], k=operands.k[0], v=operands.v[0]), offsets


def offsets_of(problem: Problem, operands: Operands) -> tuple[Int32[Array, "2 R"], ...]:
    """Offsets of all queries and of all keys, one array; none where the kernels do not take the sequences by them.

    Queries behind the last sequence become one without keys, keys there one without queries: the kernels write zeros
    for both. Offsets that decrease or pass the end are kept within the arrays.
    """
    p, q, kv = problem, operands.q_offsets, operands.kv_offsets
    # Causality and windows count from where both sides of a sequence end: positions say more.
    has_other_ends = p.bounds != (None, None) and (p.has_positions or p.q_len != p.kv_len)
    if q is None or kv is None or has_other_ends:
        return ()
    count, length = len(q), jnp.array([[p.q_len], [p.kv_len]], jnp.int32)
    if count > min(p.q_len, p.kv_len) // _TOKENS_A_SEQUENCE + _SOME:
        return ()
    # XLA makes one small program of this, which a running maximum and a concatenation would not be.
    given = jnp.clip(jnp.stack([q, kv]).astype(jnp.int32), 0, length)
    place, of = jnp.arange(count + 2)[:, None], jnp.arange(count)
    kept = jnp.where((of <= place) & (of > 0), given[:, None], 0).max(-1)
    is_behind = jnp.greater_equal(place.T, jnp.array([[count], [count + 1]]))
    return (jnp.where(is_behind, length, kept),)
