"""Values of feature problems: those that no signature says, so that a row answers calls with any, and lengths."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

# Times the problem's own scale.
OTHER_SCALE = 0.6
# A soft cap that the logits of standard normal data reach, and dropout that a few hundred weights show.
BITING_CAP, BITING_DROPOUT = 2.0, 0.25
# Query and key lengths: more than one tile of any kernel, and no multiple of one; rows before the first key; one row.
LENGTHS = ((389, 389), (197, 421), (421, 197), (1, 301))


def without_first_sink(sinks: Float[Array, " N"], where: bool | Bool[Array, ""]) -> Float[Array, " N"]:
    """``sinks``, the first of which is minus infinity, so no sink, where ``where`` is true."""
    return sinks.at[0].set(jnp.where(where, -jnp.inf, sinks[0]))
