"""The parts of attention that a library's kernel lacks: sinks after the fact, rows without keys, a given ``delta``."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

# Natural logarithms from binary ones.
LN2 = math.log(2.0)
# A cotangent smaller than this share of delta is lifted to it, below what 16-bit gradients can resolve.
_LIFT = 2.0**-12
# The logsumexp of rows that see nothing: exp(any logit - it) is zero.
_EMPTY = 1e30


def with_sinks(
    out: Float[Array, "B T N V"], lse: Float[Array, "B N T"], sinks: Float[Array, " N"] | None
) -> dict[str, Array]:
    """``out`` and ``lse`` with the sinks' share: it joins the denominator and adds nothing to the sum."""
    if sinks is not None:
        column = sinks.astype(jnp.float32)[None, :, None]
        joined = jnp.logaddexp(lse, column)
        # Neither a key nor a sink: minus infinity less minus infinity is not a number.
        share = jnp.where(jnp.isneginf(joined), 0.0, jnp.exp(lse - joined))
        out = (out.astype(jnp.float32) * share.transpose(0, 2, 1)[..., None]).astype(out.dtype)
        lse = joined
    return {"out": out, "lse": lse}


def finite_lse(lse: Float[Array, "B N T"]) -> Float[Array, "B N T"]:
    """``lse`` as a backward can subtract it: where a row sees nothing, so large that every weight is zero."""
    return jnp.where(jnp.isneginf(lse), _EMPTY, lse)


def own_delta(
    has_lse_gradient: bool,
    out: Float[Array, "B T N V"],
    dout: Float[Array, "B T N V"],
    delta: Float[Array, "B N T"],
) -> tuple[Float[Array, "B T N V"], Float[Array, "B T N V"]]:
    """``(out, dout)`` for a backward that computes ``delta = rowsum(out * dout)`` and uses ``out`` for nothing else.

    Without a gradient of the lse these are the given ones. With it, ``out`` is a float32 multiple of ``dout`` whose
    product with it has the given row sum. A row of ``dout`` that is too small to carry it gets a constant of
    negligible size.
    """
    if not has_lse_gradient:
        return out, dout
    row_delta = delta.transpose(0, 2, 1)[..., None]
    wide = dout.astype(jnp.float32)
    floor = _LIFT * jnp.abs(row_delta)
    largest = jnp.max(jnp.abs(wide), axis=-1, keepdims=True)
    lifted = jnp.where(largest < floor, floor, wide).astype(dout.dtype)
    # In two steps: squares of small numbers vanish.
    top = jnp.max(jnp.abs(lifted.astype(jnp.float32)), axis=-1, keepdims=True)
    unit = lifted.astype(jnp.float32) / jnp.where(top > 0, top, 1.0)
    square = jnp.sum(unit * unit, axis=-1, keepdims=True)
    carries = top > 0
    out = unit * jnp.where(carries, row_delta / (jnp.where(carries, top, 1.0) * jnp.where(carries, square, 1.0)), 0.0)
    return out, lifted
