"""The equations of tiles (arXiv 2406.06484, section 3, with gates as in arXiv 2412.06464, section 3.3).

Within a tile the updates ``u`` of its tokens depend on each other and on the state ``S`` before it. With ``d_ij`` the
product of the gates behind token ``j`` up to token ``i``, and ``d_i`` that of all up to ``i``::

    u_i = beta_i (v_i - d_i S^T k_i - sum_{j<i} d_ij (k_i . k_j) u_j)

that is ``(I + A) u = beta (v - d k S)`` with a strictly lower triangular ``A``. All that does not need ``S`` is
computed for several tiles together.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from attn_tune.kernels.gated_delta_rule.xla.tiles import Tile
from attn_tune.ops.recurrent.problem import RecurrentProblem as Problem


class Prepared(NamedTuple):
    """The part of some tiles that needs no state.

    Attributes:
      u: what the updates would be if the state before were zero.
      w: by what a state before is multiplied in them.
      q, k: queries, scaled and decayed from the start of the tile, and keys, decayed to its end.
      weights: of the updates in the outputs.
      decay: the product of all gates.
    """

    u: Float[Array, "*tiles C V"]
    w: Float[Array, "*tiles C H"]
    q: Float[Array, "*tiles C H"]
    k: Float[Array, "*tiles C H"]
    weights: Float[Array, "*tiles C C"]
    decay: Float[Array, "*tiles 1 1"]


def prepare(p: Problem, solve: str, dtype: jnp.dtype, tile: Tile) -> Prepared:
    """The part of tiles that needs no state; ``dtype`` is that of the operands of products."""
    gates = tile.g
    within = _sums(gates)
    row = jnp.arange(gates.shape[-1])
    decays = jnp.where(row[:, None] >= row, jnp.exp(within), 0.0)
    until = jnp.cumsum(gates, axis=-1)
    behind = within[..., -1, :]
    q, k = (x.astype(jnp.float32) for x in (tile.q, tile.k))
    exact = partial(product, dtype=tile.k.dtype)
    pairs = exact("zlkih,zlkjh->zlkij", k, k)[:, :, :, None]
    reads = exact("zlkih,zlkjh->zlkij", q, k)[:, :, :, None]
    beta = tile.beta[..., None]
    lower = jnp.where(row[:, None] > row, beta * decays * pairs, 0.0)
    solved = inverse(solve, lower)
    q, k = q[:, :, :, None], k[:, :, :, None]
    both = partial(product, "zlkgij,zlkgjd->zlkgid", dtype=dtype)
    return Prepared(
        u=both(solved, beta * tile.v.astype(jnp.float32)),
        w=both(solved, beta * jnp.exp(until)[..., None] * k),
        q=p.scale * jnp.exp(until)[..., None] * q,
        k=jnp.exp(behind)[..., None] * k,
        weights=p.scale * decays * reads,
        decay=jnp.exp(until[..., -1])[..., None, None],
    )


def advance(
    dtype: jnp.dtype, state: Float[Array, "L K G H V"], tile: Prepared
) -> tuple[Float[Array, "L K G H V"], Float[Array, "L K G C V"]]:
    """The state after one tile, and its outputs."""
    rows = partial(product, "lkgij,lkgjd->lkgid", dtype=dtype)
    update = tile.u - rows(tile.w, state)
    out = rows(tile.q, state) + rows(tile.weights, update)
    return tile.decay * state + product("lkgch,lkgcv->lkghv", tile.k, update, dtype=dtype), out


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


def _sums(gates: Float[Array, "*tiles C"]) -> Float[Array, "*tiles C C"]:
    """The sum of the gates behind column ``j`` up to row ``i``, for ``j <= i``; all others are zero.

    As sums of their own, not as differences of two: behind a gate of -128 a difference would be right to 1e-5 only.
    """
    row = jnp.arange(gates.shape[-1])
    upto = (row[:, None] >= row).astype(gates.dtype)
    behind = (row[:, None] > row).astype(gates.dtype)
    return product("...is,sj->...ij", upto * gates[..., None, :], behind, dtype=jnp.dtype(jnp.float32))


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
