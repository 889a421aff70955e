"""Tokens cut into tiles of one sequence each, and the order of the axes inside this kernel.

A row of ``L`` is a sequence, or the only row of a ragged call. Here arrays are ``[tiles, L, K, G, C, ...]``,
head-major and grouped, so that a query/key head serves its ``G`` value heads; queries and keys have no ``G``.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attn_tune.ops.recurrent.operands import Operands
from attn_tune.ops.recurrent.problem import RecurrentProblem as Problem


class Places(NamedTuple):
    """The places of tiles, all or some of them.

    Attributes:
      rows: the token of each place; those of no token are at the end of the tokens or behind.
      is_token: whether there is one.
      sequence: the sequence of each tile; zero of a call that is not ragged.
      is_first, is_last: whether a tile is the first or the last one of its sequence.
    """

    rows: Int[Array, "tiles C"]
    is_token: Bool[Array, "tiles C"]
    sequence: Int[Array, " tiles"]
    is_first: Bool[Array, " tiles"]
    is_last: Bool[Array, " tiles"]


class Tile(NamedTuple):
    """The operands of some tiles, zero where there is no token.

    Attributes:
      q, k, v: queries, keys and values in their own dtype.
      g, beta: gates, of each row of the state or of all of them, and strengths, in float32.
    """

    q: Float[Array, "tiles L K C H"]
    k: Float[Array, "tiles L K C H"]
    v: Float[Array, "tiles L K G C V"]
    g: Float[Array, "tiles L K G C gates"]
    beta: Float[Array, "tiles L K G C"]


@dataclass(frozen=True)
class Tiling:
    """A problem cut into tiles of ``chunk`` tokens, ``tiles`` of which are one step."""

    problem: Problem
    chunk: int
    tiles: int

    @property
    def count(self) -> int:
        """The most tiles that there can be, rounded up to whole steps."""
        p = self.problem
        most = -(-p.length // self.chunk)
        if p.ragged:
            most = min(p.length, (p.length + p.batch * (self.chunk - 1)) // self.chunk)
        return -(-max(most, 1) // self.tiles) * self.tiles

    def places(self, ends: Int[Array, " ends"] | None) -> Places:
        """All tiles, by steps: every array has two axes for the tile."""
        tile = jnp.arange(self.count, dtype=jnp.int32)
        inside = jnp.arange(self.chunk, dtype=jnp.int32)
        if ends is None:
            rows = tile[:, None] * self.chunk + inside
            found = Places(rows, rows < self.problem.length, jnp.zeros_like(tile), tile == 0, tile == self.count - 1)
        else:
            begins, lengths = ends[:-1], ends[1:] - ends[:-1]
            last = jnp.cumsum(-(-lengths // self.chunk), dtype=jnp.int32)
            sequence = jnp.minimum(
                jnp.searchsorted(last, tile, side="right", method="scan_unrolled"), lengths.shape[0] - 1
            ).astype(jnp.int32)
            first = jnp.where(sequence > 0, last[sequence - 1], 0)
            own = ((tile - first) * self.chunk)[:, None] + inside
            is_tile = tile < last[-1]
            is_token = (own < lengths[sequence][:, None]) & is_tile[:, None]
            # Places that do not exist, each another one.
            nowhere = self.problem.length + tile[:, None] * self.chunk + inside
            rows = jnp.where(is_token, begins[sequence][:, None] + own, nowhere)
            found = Places(rows, is_token, sequence, is_tile & (tile == first), is_tile & (tile == last[sequence] - 1))
        return Places(*(x.reshape(-1, self.tiles, *x.shape[1:]) for x in found))

    def padded(self, x: Array) -> Array:
        """An array of tokens as ``read`` and ``write`` take it: whole tiles of a call that is not ragged."""
        more = 0 if self.problem.ragged else self.count * self.chunk - x.shape[1]
        return jnp.pad(x, ((0, 0), (0, more), *[(0, 0)] * (x.ndim - 2))) if more else x

    def unpadded(self, x: Array) -> Array:
        """The inverse of ``padded``."""
        return x[:, : self.problem.length]

    def read(self, places: Places, x: Float[Array, "L T heads *D"]) -> Float[Array, "tiles L heads C *D"]:
        """The tiles of one step from a padded array."""
        p = self.problem
        rows = places.rows.reshape(-1)
        if p.ragged:
            x = jnp.where(_beside(places.is_token.reshape(-1), x), x[:, jnp.minimum(rows, p.length - 1)], 0)
        else:
            x = lax.dynamic_slice_in_dim(x, rows[0], rows.shape[0], 1)
        x = x.reshape(x.shape[0], self.tiles, self.chunk, *x.shape[2:])
        return jnp.moveaxis(x, (1, 3), (0, 2))

    def write(self, places: Places, x: Array, tiles: Float[Array, "tiles L heads C *D"]) -> Array:
        """A padded array with the tiles of one step."""
        rows = places.rows.reshape(-1)
        new = jnp.moveaxis(tiles, (0, 2), (1, 3))
        new = new.reshape(x.shape[0], rows.shape[0], *x.shape[2:]).astype(x.dtype)
        if self.problem.ragged:
            return x.at[:, rows].set(new, mode="drop", unique_indices=True)
        return lax.dynamic_update_slice_in_dim(x, new, rows[0], 1)

    def tile(self, places: Places, o: Operands) -> Tile:
        """The operands of one step. ``o`` is padded."""
        p = self.problem
        q, k, v = (self.read(places, x) for x in (o.q, o.k, o.v))
        # A place without a token changes no state.
        ones = jnp.broadcast_to(places.is_token[:, None, None], v.shape[:-1]).astype(jnp.float32)
        if o.g is None:
            g = jnp.zeros_like(ones)
        else:
            g = o.g[:, None] * ones if p.gate == "constant" else self.read(places, o.g)
        beta = ones if o.beta is None else self.read(places, o.beta)
        g = g if p.gate == "channel" else g[..., None]
        return Tile(q, k, *(x.reshape(*x.shape[:2], p.num_key_heads, p.group_size, *x.shape[3:]) for x in (v, g, beta)))


def _beside(flags: Array, x: Array) -> Array:
    return flags.reshape(1, -1, *[1] * (x.ndim - 2))


def grouped(p: Problem, states: Float[Array, "B N H V"]) -> Float[Array, "B K G H V"]:
    """States by query/key head."""
    return states.reshape(-1, p.num_key_heads, p.group_size, *states.shape[2:])


def zeros_of(p: Problem, rows: int) -> Float[Array, "rows K G H V"]:
    """States of nothing."""
    return jnp.zeros((rows, p.num_key_heads, p.group_size, p.head_dim, p.v_head_dim), jnp.float32)


def entering(
    p: Problem, initial: Float[Array, "B K G H V"], places: Places, state: Float[Array, "L K G H V"]
) -> Float[Array, "L K G H V"]:
    """The state before one tile, from that after the tile before. ``places`` are those of the tile alone."""
    if not p.ragged:
        return state
    return jnp.where(places.is_first, initial[places.sequence][None], state)


def noted(
    p: Problem,
    states: Float[Array, "B K G H V"],
    sequence: Int[Array, ""],
    state: Float[Array, "L K G H V"],
    is_own: Bool[Array, ""],
) -> Float[Array, "B K G H V"]:
    """``states`` with that of one sequence, where it is its own; of a call that is not ragged as they are."""
    if not p.ragged:
        return states
    return states.at[jnp.where(is_own, sequence, p.batch)].set(state[0], mode="drop")


def padded(tiling: Tiling, o: Operands) -> Operands:
    """The operands with all arrays of tokens padded; constant gates belong to none."""
    given = {name: x for name in Tile._fields if (x := getattr(o, name)) is not None and x.ndim > 1}
    return o._replace(**{name: tiling.padded(x) for name, x in given.items()})
