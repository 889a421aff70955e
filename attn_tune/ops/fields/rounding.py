"""Rounding that the compiler keeps.

``x.astype(narrow).astype(x.dtype)`` is no rounding: XLA may keep the wider value (``xla_allow_excess_precision``, which
is on), and for a GPU it does; nor is arithmetic in 16 bits, where XLA computes it in float32. What says how a working
dtype rounds must not depend on that.
"""

# ``rounding.pyi`` has the types: the source digests of kernels count annotations here.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def round_to(x: Array, dtype: jnp.dtype) -> Array:
    """The nearest values of ``dtype``, in the dtype of ``x``. Cotangents are rounded too, as a conversion's are.

    Args:
      x: float32 or float64.
      dtype: float16, bfloat16, or one that is at least as wide as ``x``, which leaves it as it is.
    """
    narrow, wide = jnp.finfo(dtype), jnp.finfo(x.dtype)
    if narrow.bits >= wide.bits:
        return x
    rounded = lax.reduce_precision(x, narrow.nexp, narrow.nmant)
    if narrow.nexp == wide.nexp:
        return rounded
    # reduce_precision knows no subnormal numbers, whose steps are all equal.
    step = float(narrow.smallest_subnormal)
    even = step * lax.round(x / step, lax.RoundingMethod.TO_NEAREST_EVEN)
    return jnp.where(jnp.abs(x) < float(narrow.smallest_normal), even, rounded)


round_to.defvjp(lambda x, dtype: (round_to(x, dtype), None), lambda dtype, _, ct: (round_to(ct, dtype),))
