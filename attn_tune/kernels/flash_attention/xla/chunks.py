"""Code of both directions: the grid of chunks, cutting arrays along it, and the logits of one chunk pair.

Inside this kernel arrays are head-major and grouped: queries ``[B, K, G, T, .]``, keys ``[B, K, S, .]``, so that one
key/value head serves its ``G`` query heads in one matrix product and is never repeated.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attn_tune.ops.fields.padding import zero_beyond
from attn_tune.ops.flash_attention.dropout import keep_mask
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem


@dataclass(frozen=True)
class Grid:
    """A problem cut into chunks of ``q`` rows by ``k`` columns; the last ones are padded."""

    problem: Problem
    q: int
    k: int

    @classmethod
    def of(cls, problem: Problem, chunk_q: int, chunk_k: int) -> "Grid":
        """The grid with chunks cut to the problem's lengths."""
        return cls(problem, min(chunk_q, problem.q_len), min(chunk_k, problem.kv_len))

    @property
    def q_padding(self) -> int:
        """Rows added at the end."""
        return -self.problem.q_len % self.q

    @property
    def k_padding(self) -> int:
        """Columns added at the end."""
        return -self.problem.kv_len % self.k

    @property
    def visible_pairs(self) -> Int[np.ndarray, "P 2"]:
        """``(row chunk, column chunk)`` of every pair that causal and window leave partly visible, row by row.

        With explicit positions nothing is known before the call, and all pairs are listed.
        """
        p = self.problem
        i, j = np.meshgrid(np.arange(-(-p.q_len // self.q)), np.arange(-(-p.kv_len // self.k)), indexing="ij")
        seen = np.ones(i.shape, bool)
        if not p.has_positions:
            left, right = p.bounds
            first_row = i * self.q + p.offset
            last_row = np.minimum((i + 1) * self.q, p.q_len) - 1 + p.offset
            first_col = j * self.k
            last_col = np.minimum((j + 1) * self.k, p.kv_len) - 1
            if right is not None:
                seen &= first_col <= last_row + right
            if left is not None:
                seen &= last_col >= first_row - left
        return np.stack([i[seen], j[seen]], axis=1).astype(np.int32)


class Side(NamedTuple):
    """Padded operands in this kernel's layout; those that are absent are None."""

    q: Float[Array, "B K G Tp H"]
    k: Float[Array, "B K Sp H"]
    v: Float[Array, "B K Sp V"]
    bias: Float[Array, "_b _k _g _t _s"] | None
    mask: Bool[Array, "_b _k _g _t _s"] | None
    q_segments: Int[Array, "B Tp"] | None
    kv_segments: Int[Array, "B Sp"] | None
    q_positions: Int[Array, "B Tp"] | None
    kv_positions: Int[Array, "B Sp"] | None
    dropout: Array | None


class Tile(NamedTuple):
    """The logits of one chunk pair, ``[B, K, G, q, k]`` float32.

    ``capped`` is before bias and mask, what the derivative of the cap needs; ``logits`` is minus infinity where
    hidden; ``keep`` is None without dropout.
    """

    logits: Array
    capped: Array
    keep: Array | None


def prepare(grid: Grid, o: Operands) -> Side:
    """Regroups and pads the operands once, before the scan."""
    p = grid.problem

    def rows(x):
        return None if x is None else _pad(x, 1, grid.q_padding)

    def cols(x):
        return None if x is None else _pad(x, 1, grid.k_padding)

    return Side(
        q=to_groups(grid, o.q),
        k=_pad(zero_beyond(o.k, o.kv_lengths).swapaxes(1, 2), 2, grid.k_padding),
        v=_pad(zero_beyond(o.v, o.kv_lengths).swapaxes(1, 2), 2, grid.k_padding),
        bias=_dense(grid, o.bias, p.bias_dims),
        mask=_dense(grid, o.mask, p.mask_dims),
        q_segments=rows(o.q_segments),
        kv_segments=cols(o.kv_segments),
        q_positions=rows(o.q_positions),
        kv_positions=cols(o.kv_positions),
        dropout=o.dropout,
    )


def to_groups(grid: Grid, x: Float[Array, "B T N D"]) -> Float[Array, "B K G Tp D"]:
    """Query-side array, head-major, grouped by key/value head and padded."""
    p = grid.problem
    x = x.reshape(p.batch, p.q_len, p.num_kv_heads, p.group_size, x.shape[-1])
    return _pad(x.transpose(0, 2, 3, 1, 4), 3, grid.q_padding)


def from_groups(grid: Grid, x: Float[Array, "B K G Tp D"]) -> Float[Array, "B T N D"]:
    """The inverse of ``to_groups``."""
    p = grid.problem
    x = x[:, :, :, : p.q_len].transpose(0, 3, 1, 2, 4)
    return x.reshape(p.batch, p.q_len, p.num_q_heads, x.shape[-1])


def rows_to_groups(grid: Grid, x: Float[Array, "B N T"], *, fill: float) -> Array:
    """Per-row numbers ``[B, K, G, Tp]``, padded with ``fill``."""
    p = grid.problem
    x = x.reshape(p.batch, p.num_kv_heads, p.group_size, p.q_len)
    return _pad(x, 3, grid.q_padding, fill)


def cut(x: Array, axis: int, start: Array, size: int) -> Array:
    """``size`` entries of one axis from a traced start."""
    return lax.dynamic_slice_in_dim(x, start, size, axis)


def put(x: Array, axis: int, start: Array, update: Array) -> Array:
    """Writes a chunk back."""
    return lax.dynamic_update_slice_in_dim(x, update.astype(x.dtype), start, axis)


def add(x: Array, axis: int, start: Array, update: Array) -> Array:
    """Adds a chunk in place."""
    return put(x, axis, start, cut(x, axis, start, update.shape[axis]) + update)


def cut_dense(x: Array, dims: str, grid: Grid, i: Array, j: Array) -> Array:
    """The chunk pair's part of a bias or mask ``[_b, _k, _g, _t, _s]``; broadcast axes stay 1."""
    if dims[2] == "t":
        x = cut(x, 3, i * grid.q, grid.q)
    return cut(x, 4, j * grid.k, grid.k) if dims[3] == "s" else x


def matmul(p: Problem, spec: str, x: Array, y: Array) -> Array:
    """A matrix product of the problem's precision, accumulated in float32."""
    return jnp.einsum(spec, x, y, precision=p.precision, preferred_element_type=jnp.float32)


def tile(grid: Grid, side: Side, q: Array, k: Array, i: Array, j: Array) -> Tile:
    """Logits of row chunk ``i`` against column chunk ``j``; ``q`` and ``k`` are those chunks."""
    p = grid.problem
    x = p.scale * matmul(p, "bkgth,bksh->bkgts", q, k)
    x = x.astype(p.logits_dtype).astype(jnp.float32)
    if p.soft_cap is not None:
        x = p.soft_cap * jnp.tanh(x / p.soft_cap)
    logits = x
    if side.bias is not None and p.bias_dims is not None:
        logits = logits + cut_dense(side.bias, p.bias_dims, grid, i, j).astype(jnp.float32)
    visible = _visible(grid, side, i, j)
    if visible is not None:
        logits = jnp.where(visible, logits, -jnp.inf)
    return Tile(logits, x, _keep(grid, side, i, j))


def _visible(grid: Grid, side: Side, i: Array, j: Array) -> Array | None:
    p = grid.problem
    col = j * grid.k + jnp.arange(grid.k, dtype=jnp.int32)
    conditions = []
    if grid.k_padding:
        conditions.append((col < p.kv_len)[None, None])
    left, right = p.bounds
    if left is not None or right is not None:
        row = i * grid.q + jnp.arange(grid.q, dtype=jnp.int32)
        q_pos, kv_pos = (row + p.offset)[None], col[None]
        if side.q_positions is not None and side.kv_positions is not None:
            q_pos = cut(side.q_positions, 1, i * grid.q, grid.q)
            kv_pos = cut(side.kv_positions, 1, j * grid.k, grid.k)
        q_pos, kv_pos = q_pos[:, :, None], kv_pos[:, None, :]
        if right is not None:
            conditions.append(kv_pos <= q_pos + right)
        if left is not None:
            conditions.append(kv_pos >= q_pos - left)
    if side.q_segments is not None and side.kv_segments is not None:
        q_seg = cut(side.q_segments, 1, i * grid.q, grid.q)
        kv_seg = cut(side.kv_segments, 1, j * grid.k, grid.k)
        conditions.append(q_seg[:, :, None] == kv_seg[:, None, :])
    conditions = [c[:, None, None] for c in conditions]
    if side.mask is not None and p.mask_dims is not None:
        conditions.append(cut_dense(side.mask, p.mask_dims, grid, i, j))
    if not conditions:
        return None
    visible = conditions[0]
    for condition in conditions[1:]:
        visible = visible & condition
    return visible


def _keep(grid: Grid, side: Side, i: Array, j: Array) -> Array | None:
    if side.dropout is None:
        return None
    p = grid.problem
    head = jnp.arange(p.num_q_heads).reshape(1, p.num_kv_heads, p.group_size, 1, 1)
    return keep_mask(
        side.dropout,
        p.dropout_rate,
        batch=jnp.arange(p.batch).reshape(-1, 1, 1, 1, 1),
        head=head,
        row=(i * grid.q + jnp.arange(grid.q)).reshape(-1, 1),
        col=j * grid.k + jnp.arange(grid.k),
    )


def _dense(grid: Grid, x: Array | None, dims: str | None) -> Array | None:
    if x is None or dims is None:
        return None
    p = grid.problem
    heads = (p.num_kv_heads, p.group_size) if dims[1] == "n" else (1, 1)
    x = x.reshape(x.shape[0], *heads, *x.shape[2:])
    x = _pad(x, 3, grid.q_padding) if dims[2] == "t" else x
    return _pad(x, 4, grid.k_padding) if dims[3] == "s" else x


def _pad(x: Array, axis: int, amount: int, fill: float = 0) -> Array:
    if amount == 0:
        return x
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, amount)
    return jnp.pad(x, widths, constant_values=fill)
