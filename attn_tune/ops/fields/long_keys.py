"""Keys of inputs that are much longer than the others, so that the running maximum of a row moves late and far."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# One key in so many, a prime, so that tiles have them at different places, and how much longer it is than the others:
# in 16 bits so much that the exponential of a logit would overflow. In float32 that of a large logit is off by more
# than is allowed, and codes end at a largest one.
EVERY, LONGER, LITTLE_LONGER = 61, 40.0, 6.0


def key_factors(token: Int[Array, "*tokens"], seed: int | Array, *, little: bool) -> Float[Array, "*tokens"]:
    """Factors of the length of each token's key, one for even seeds. ``little``: keys are of float32, or codes."""
    is_long = (token % EVERY == EVERY // 2) & (seed % 2 == 1)
    return jnp.where(is_long, LITTLE_LONGER if little else LONGER, 1.0)
