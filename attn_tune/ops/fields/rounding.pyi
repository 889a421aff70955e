"""Types of ``rounding``, whose decorator hides them. Its own source is part of stored digests, and stays as it is."""

import jax.numpy as jnp
from jaxtyping import Array

def round_to(x: Array, dtype: jnp.dtype) -> Array: ...
