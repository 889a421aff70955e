"""Query heads and key/value heads: query head ``n`` reads key/value head ``n // (N // K)`` everywhere."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from attn_tune.schema.errors import UsageError


def repeat_kv_heads(
    key: Float[Array, "B S K H"], value: Float[Array, "B S K V"], repeats: int
) -> tuple[Float[Array, "B S N H"], Float[Array, "B S N V"]]:
    """Keys and values with each head repeated, so that there is one per query head (``N = K * repeats``)."""
    if repeats < 1:
        raise UsageError(f"repeats must be at least 1, got {repeats}")
    return repeated(key, repeats, 2), repeated(value, repeats, 2)


def expand_heads(
    array: Shaped[Array, "_b _h ..."] | None,
    num_q_heads: int,
    num_kv_heads: int,
    *,
    name: str = "array",
) -> Shaped[Array, "_b _n ..."] | None:
    """A bias or mask whose head axis (1) has size 1 or ``N``; one of size ``K`` is repeated to ``N``, group by group.

    Raises:
      UsageError: the head axis is none of 1, ``K`` and ``N``.
    """
    if array is None or array.shape[1] in (1, num_q_heads):
        return array
    if array.shape[1] == num_kv_heads:
        return repeated(array, num_q_heads // num_kv_heads, 1)
    raise UsageError(
        f"{name} has {array.shape[1]} heads; it must have 1, {num_kv_heads} (key/value heads) "
        f"or {num_q_heads} (query heads)"
    )


def repeated(array: Shaped[Array, "..."], repeats: int, axis: int) -> Shaped[Array, "..."]:
    """``jnp.repeat``, which refuses arrays whose types say how they are sharded."""
    shape = array.shape
    spread = jnp.expand_dims(array, axis + 1)
    spread = jnp.broadcast_to(spread, (*shape[: axis + 1], repeats, *shape[axis + 1 :]))
    return spread.reshape(*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :])
