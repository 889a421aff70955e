"""The merge of attention over parts of the keys that different devices hold."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn_tune.api.context_parallel.layouts import axis_size
from attn_tune.ops.fields.arguments import check_array
from attn_tune.schema.errors import UsageError


def merge_over_axis(
    out: Float[Array, "..."], lse: Float[Array, "..."], axis_name: Any
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Attention over the keys of all devices of a mesh axis, from that over each one's own: ``(out, lse)``.

    Inside ``jax.shard_map``, of the same queries on every device: one new token of each sequence over a cache whose
    tokens are sharded. Every device gets the result. A device whose lse is minus infinity counts for nothing, even
    where its output is not a number; where all are such, the output is zero. Sums are float32.

    Args:
      out: the output over a device's own keys, ``[..., V]``, as of ``paged_decode``.
      lse: the natural logarithm of its softmax denominator, float32 with the axes of ``out`` but the last. That of
        ``flash_attention`` is ``[B, N, T]``: give ``lse.swapaxes(1, 2)``.
      axis_name: the mesh axis, or a tuple of several.

    Returns:
      The output in the dtype of ``out``, and its lse in float32.

    Raises:
      UsageError: the axis is not bound, or the arrays do not fit.
    """
    axis_size(axis_name)
    out, lse = check_array("out", out), check_array("lse", lse)
    if lse.shape != out.shape[:-1] or lse.dtype != jnp.float32:
        raise UsageError(
            f"lse must be float32{list(out.shape[:-1])}, the axes of out but the last, got {lse.dtype}{list(lse.shape)}"
        )
    # The derivative does not depend on the number that keeps powers in range.
    largest = jax.lax.pmax(jax.lax.stop_gradient(lse), axis_name)
    weight = jnp.where(jnp.isneginf(lse), 0, jnp.exp(lse - jnp.where(jnp.isneginf(largest), 0, largest)))
    part = jnp.where(weight[..., None] > 0, out, 0).astype(jnp.float32) * weight[..., None]
    total, summed = jax.lax.psum((weight, part), axis_name)
    # Not "above zero": an lse that is no number makes a result that is none.
    seen = total != 0
    merged = jnp.where(seen[..., None], summed / jnp.where(seen, total, 1)[..., None], 0)
    return merged.astype(out.dtype), jnp.where(seen, largest + jnp.log(jnp.where(seen, total, 1)), -jnp.inf)
