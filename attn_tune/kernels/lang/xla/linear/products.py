"""Products whose operands have a dtype of choice, and inverses of triangular matrices; both with their gradients."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float


def product(spec: str, x: Array, y: Array, *, dtype: jnp.dtype) -> Float[Array, "..."]:
    """A product of operands of ``dtype``, cotangents too, in float32."""
    return _product(spec, jnp.dtype(dtype), x, y)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _product(spec: str, dtype: jnp.dtype, x: Array, y: Array) -> Array:
    return jnp.einsum(
        spec,
        x.astype(dtype),
        y.astype(dtype),
        precision=lax.Precision.HIGHEST if dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )


def _product_gradients(spec: str, dtype: jnp.dtype, saved: tuple[Array, Array], cotangent: Array) -> tuple:
    x, y = saved
    operands, out = spec.split("->")
    left, right = operands.split(",")
    dx = _product(f"{out},{right}->{left}", dtype, cotangent, y)
    dy = _product(f"{left},{out}->{right}", dtype, x, cotangent)
    return dx, dy


_product.defvjp(lambda spec, dtype, x, y: (_product(spec, dtype, x, y), (x, y)), _product_gradients)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def inverse(solve: str, lower: Float[Array, "*tiles C C"]) -> Float[Array, "*tiles C C"]:
    """The inverse of ``I + lower``, where ``lower`` is zero on its diagonal and above."""
    size = lower.shape[-1]
    one = jnp.eye(size, dtype=lower.dtype)
    if solve == "substitution":
        whole = jnp.broadcast_to(one, lower.shape)
        return solve_triangular(one + lower, whole, lower=True, unit_diagonal=True)
    # Two blocks a step: the inverse of [[a, 0], [b, c]] is [[1/a, 0], [-1/c b 1/a, 1/c]].
    found, block, row = jnp.broadcast_to(one, lower.shape), 1, jnp.arange(size)
    while block < size:
        place = row // block
        below = (place[:, None] // 2 == place // 2) & (place[:, None] == place + 1)
        found = found - _full(_full(found, jnp.where(below, lower, 0.0)), found)
        block *= 2
    return found


def _full(x: Array, y: Array) -> Array:
    return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)


def _inverse_gradient(solve: str, found: Array, cotangent: Array) -> tuple[Array]:
    turned = jnp.swapaxes(found, -1, -2)
    row = jnp.arange(found.shape[-1])
    return (jnp.where(row[:, None] > row, -_full(_full(turned, cotangent), turned), 0.0),)


inverse.defvjp(lambda solve, lower: (found := inverse(solve, lower), found), _inverse_gradient)
