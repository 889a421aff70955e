"""The equations of tiles (arXiv 2406.06484, section 3; gates as in arXiv 2412.06464, section 3.3, and 2510.26692, 3).

Let ``d_ij`` be the product of the gates behind token ``j`` up to token ``i`` of a tile, ``d_i`` that of all up to
``i``, and ``S`` the state before the tile. The outputs and the state after it are sums over updates ``u``. Without the
delta rule these are the values. With it they depend on each other and on ``S``::

    u_i = beta_i (v_i - S^T (d_i k_i) - sum_{j<i} (k_i . d_ij k_j) u_j)

that is ``(I + A) u = beta (v - (d k) S)`` with a strictly lower triangular ``A``. All that does not need ``S`` is
computed for several tiles together.
"""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from attn_tune.kernels.lang.xla.linear.gates import decayed
from attn_tune.kernels.lang.xla.linear.products import inverse, product
from attn_tune.kernels.lang.xla.linear.tiles import Tile
from attn_tune.ops.recurrent.problem import RecurrentProblem as Problem


class Prepared(NamedTuple):
    """The part of some tiles that needs no state.

    Attributes:
      u: what the updates would be if the state before were zero.
      w: by what a state before is multiplied in them; None without the delta rule.
      q, k: queries, scaled and decayed from the start of the tile, and keys, decayed to its end.
      weights: of the updates in the outputs.
      decay: the product of all gates, of each row of the state or of all of them.
    """

    u: Float[Array, "*tiles C V"]
    w: Float[Array, "*tiles C H"] | None
    q: Float[Array, "*tiles C H"]
    k: Float[Array, "*tiles C H"]
    weights: Float[Array, "*tiles C C"]
    decay: Float[Array, "*tiles rows 1"]


def prepare(p: Problem, solve: str | None, dtype: jnp.dtype, tile: Tile) -> Prepared:
    """The part of tiles that needs no state.

    Args:
      solve: how equations of the delta rule are solved; None without it.
      dtype: of the operands of products.
    """
    since, until, reads, pairs = decayed(tile.q, tile.k, tile.g, p.has_delta, dtype)
    q, k = (x.astype(jnp.float32)[:, :, :, None] for x in (tile.q, tile.k))
    start = jnp.exp(since)
    u, w = tile.v.astype(jnp.float32), None
    if pairs is not None and solve is not None:
        beta, row = tile.beta[..., None], jnp.arange(pairs.shape[-1])
        solved = inverse(solve, jnp.where(row[:, None] > row, beta * pairs, 0.0))
        both = partial(product, "zlkgij,zlkgjd->zlkgid", dtype=dtype)
        u, w = both(solved, beta * u), both(solved, beta * start * k)
    return Prepared(
        u=u,
        w=w,
        q=p.scale * start * q,
        k=jnp.exp(until) * k,
        weights=p.scale * reads,
        decay=start[..., -1, :, None],
    )


def advance(
    dtype: jnp.dtype, state: Float[Array, "L K G H V"], tile: Prepared
) -> tuple[Float[Array, "L K G H V"], Float[Array, "L K G C V"]]:
    """The state after one tile, and its outputs."""
    rows = partial(product, "lkgij,lkgjd->lkgid", dtype=dtype)
    update = tile.u if tile.w is None else tile.u - rows(tile.w, state)
    out = rows(tile.q, state) + rows(tile.weights, update)
    return tile.decay * state + product("lkgch,lkgcv->lkghv", tile.k, update, dtype=dtype), out
