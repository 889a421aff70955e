"""Checks of the arguments of public ops whose sequences may lie end to end."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from attn_tune.ops.fields.arguments import check_array
from attn_tune.ops.fields.cache_arguments import check_ends
from attn_tune.schema.errors import UsageError


def checked_ends(cu_seqlens: Any, rows: int, length: int) -> Int[Array, " ends"] | None:
    """The borders of packed sequences, none beyond the tokens; None without.

    Raises:
      UsageError: a batch of several, or as ``packed_ends``.
    """
    if cu_seqlens is None:
        return None
    if rows != 1:
        raise UsageError(
            f"cu_seqlens lays sequences end to end in a batch of 1, got a batch of {rows}: reshape it to one row"
        )
    return packed_ends("cu_seqlens", cu_seqlens, length)


def packed_ends(name: str, given: Any, length: int) -> Int[Array, " ends"]:
    """The borders of packed sequences, which the argument ``name`` holds, none beyond the tokens.

    Raises:
      UsageError: no list of integers, or, where Python or numpy holds them, one that decreases or ends behind the
        tokens.
    """
    ends = check_array(name, given)
    if ends.ndim != 1 or ends.shape[0] < 2 or not jnp.issubdtype(ends.dtype, jnp.integer):
        least = "; at least one sequence, which has two ends" if ends.ndim == 1 and ends.shape[0] < 2 else ""
        raise UsageError(f"{name} must be int32 [sequences + 1], got {ends.dtype}{list(ends.shape)}{least}")
    ends = check_ends(name, given, ends.shape, name, most=(length, "tokens"), from_zero=False)
    return jnp.clip(ends, 0, length)
