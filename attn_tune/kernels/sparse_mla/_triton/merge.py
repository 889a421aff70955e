"""The merge of the parts of a query whose indices several programs share (Flash-Decoding), left to XLA."""

import jax
import jax.numpy as jnp


def merged(parts: jax.Array, logs: jax.Array, dtype: jnp.dtype) -> dict[str, jax.Array]:
    """The output and the lse of all parts, on the first axis; a part without keys is zero and minus infinity."""
    highest = jnp.max(logs, axis=0)
    weights = jnp.exp(logs - jnp.where(jnp.isneginf(highest), 0.0, highest))
    total = jnp.sum(weights, axis=0)
    some = jnp.where(total > 0, total, 1.0)
    out = jnp.sum(parts * (weights / some)[..., None], axis=0)
    return {"out": out.astype(dtype), "lse": jnp.where(total > 0, highest + jnp.log(some), -jnp.inf)}
