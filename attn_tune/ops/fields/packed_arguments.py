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
      UsageError: a batch of several, no list of integers, or, where Python or numpy holds them, one that decreases or
        ends behind the tokens.
    """
    if cu_seqlens is None:
        return None
    if rows != 1:
        raise UsageError(f"cu_seqlens lays sequences end to end in a batch of 1, got a batch of {rows}")
    ends = check_array("cu_seqlens", cu_seqlens)
    if ends.ndim != 1 or ends.shape[0] < 2 or not jnp.issubdtype(ends.dtype, jnp.integer):
        least = "; at least one sequence, which has two ends" if ends.ndim == 1 and ends.shape[0] < 2 else ""
        raise UsageError(f"cu_seqlens must be int32 [sequences + 1], got {ends.dtype}{list(ends.shape)}{least}")
    tokens = (length, "tokens")
    ends = check_ends("cu_seqlens", cu_seqlens, ends.shape, "cu_seqlens", most=tokens, from_zero=False)
    return jnp.clip(ends, 0, length)
