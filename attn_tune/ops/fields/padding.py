"""Padding at the end of a sequence, replaced by zeros: what is stored there must not be a number."""

import jax.numpy as jnp
from jaxtyping import Array, Int


def zero_beyond(array: Array, lengths: Int[Array, " B"] | None) -> Array:
    """``array`` [B, L, ...] with zeros from token ``lengths[b]`` on; as it is without lengths.

    A weight of zero does not hide a value that is infinite or not a number: their product is not a number. The
    gradient of the tokens that are replaced is zero, for any cotangent.
    """
    if lengths is None:
        return array
    counts = jnp.arange(array.shape[1], dtype=jnp.int32)[None] < lengths[:, None]
    return jnp.where(counts.reshape(*counts.shape, *[1] * (array.ndim - 2)), array, 0)
