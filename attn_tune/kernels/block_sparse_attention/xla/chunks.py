"""Code of both directions: the pairs of chunks that are walked, and the logits of one.

Arrays are head-major and grouped here: queries ``[B, K, G, T, .]``, keys ``[B, K, S, .]``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attn_tune.ops.block_sparse_attention.operands import Operands
from attn_tune.ops.block_sparse_attention.problem import Problem
from attn_tune.ops.fields.padding import zero_beyond


class Side(NamedTuple):
    """Operands in this kernel's layout, rows and keys padded to whole chunks.

    Attributes:
      blocks: the mask of blocks, ``[_b, _k, _g, R, C]``.
      q_segments, kv_segments: ids; None without.
    """

    q: Float[Array, "B K G Tp H"]
    k: Float[Array, "B K Sp H"]
    v: Float[Array, "B K Sp V"]
    blocks: Bool[Array, "_b _k _g R C"]
    q_segments: Int[Array, "B Tp"] | None
    kv_segments: Int[Array, "B Sp"] | None


@dataclass(frozen=True)
class Grid:
    """A problem cut into chunks of ``q`` rows by ``k`` columns; the last ones are padded."""

    problem: Problem
    q: int
    k: int

    @classmethod
    def of(cls, problem: Problem, config: Any) -> "Grid":
        """The grid of a config, its chunks cut to the problem's lengths."""
        return cls(problem, min(config.chunk_q, problem.q_len), min(config.chunk_k, problem.kv_len))

    @property
    def pairs(self) -> Int[np.ndarray, "P 2"]:
        """``(row chunk, column chunk)`` of every pair that causality and window leave partly visible, row by row."""
        p, (left, right) = self.problem, self.problem.bounds
        i, j = np.meshgrid(np.arange(-(-p.q_len // self.q)), np.arange(-(-p.kv_len // self.k)), indexing="ij")
        seen = np.ones(i.shape, bool)
        if right is not None:
            seen &= j * self.k <= np.minimum((i + 1) * self.q, p.q_len) - 1 + p.offset + right
        if left is not None:
            seen &= np.minimum((j + 1) * self.k, p.kv_len) - 1 >= i * self.q + p.offset - left
        return np.stack([i[seen], j[seen]], axis=1).astype(np.int32)

    def rows(self, array: Array, axis: int, fill: float = 0) -> Array:
        """``array`` with an axis of query rows padded."""
        return _pad(array, axis, -self.problem.q_len % self.q, fill)

    def columns(self, array: Array, axis: int) -> Array:
        """``array`` with an axis of keys padded."""
        return _pad(array, axis, -self.problem.kv_len % self.k, 0)

    def grouped(self, array: Float[Array, "B T N D"]) -> Float[Array, "B K G Tp D"]:
        """An array of the query side."""
        p = self.problem
        array = array.reshape(p.batch, p.q_len, p.num_kv_heads, p.group_size, array.shape[-1])
        return self.rows(array.transpose(0, 2, 3, 1, 4), 3)

    def ungrouped(self, array: Float[Array, "B K G Tp D"]) -> Float[Array, "B T N D"]:
        """The inverse of ``grouped``."""
        p = self.problem
        return array[:, :, :, : p.q_len].transpose(0, 3, 1, 2, 4).reshape(p.batch, p.q_len, p.num_q_heads, -1)

    def grouped_rows(self, array: Float[Array, "B N T"], fill: float) -> Float[Array, "B K G Tp"]:
        """Numbers a row, those of padding ``fill``."""
        p = self.problem
        return self.rows(array.reshape(p.batch, p.num_kv_heads, p.group_size, p.q_len), 3, fill)

    def prepare(self, o: Operands) -> Side:
        """The operands, regrouped and padded once, before the scan."""
        p = self.problem
        batch, heads, rows, columns = o.block_mask.shape
        of_heads = (p.num_kv_heads, p.group_size) if heads > 1 else (1, 1)
        return Side(
            q=self.grouped(o.q),
            k=self.columns(zero_beyond(o.k, o.kv_lengths).swapaxes(1, 2), 2),
            v=self.columns(zero_beyond(o.v, o.kv_lengths).swapaxes(1, 2), 2),
            blocks=o.block_mask.reshape(batch, *of_heads, rows, columns),
            q_segments=None if o.q_segments is None else self.rows(o.q_segments, 1),
            kv_segments=None if o.kv_segments is None else self.columns(o.kv_segments, 1),
        )

    def walk[T](self, side: Side, carry: T, step: Callable[[T, Array, Array, Bool[Array, "..."]], T]) -> T:
        """``carry`` after ``step(carry, i, j, visible)`` of every pair of chunks in which some pair is visible."""

        def visit(carry: T, pair: Array) -> tuple[T, None]:
            visible = self._visible(side, pair[0], pair[1])
            walked = lax.cond(jnp.any(visible), lambda c: step(c, pair[0], pair[1], visible), lambda c: c, carry)
            return walked, None

        carry, _ = lax.scan(visit, carry, jnp.asarray(self.pairs))
        return carry

    def _visible(self, side: Side, i: Array, j: Array) -> Bool[Array, "_b _k _g q k"]:
        p, (left, right) = self.problem, self.problem.bounds
        row = i * self.q + jnp.arange(self.q, dtype=jnp.int32)
        column = j * self.k + jnp.arange(self.k, dtype=jnp.int32)
        # The results of padded rows are cut off, so that they may read the last block.
        seen = jnp.take(side.blocks, row // p.mask_block_q, axis=3, mode="clip")
        seen = jnp.take(seen, column // p.mask_block_k, axis=4, mode="clip")
        seen = seen & (column < p.kv_len)
        ahead = column[None] - row[:, None] - p.offset
        if right is not None:
            seen = seen & (ahead <= right)
        if left is not None:
            seen = seen & (ahead >= -left)
        if side.q_segments is not None and side.kv_segments is not None:
            of_rows = cut(side.q_segments, 1, i * self.q, self.q)
            same = of_rows[:, :, None] == cut(side.kv_segments, 1, j * self.k, self.k)[:, None]
            seen = seen & same[:, None, None]
        return seen

    def logits(self, q: Array, k: Array, visible: Array) -> tuple[Array, Array]:
        """Logits ``[B, K, G, q, k]`` in float32, minus infinity where hidden; and those before that."""
        p = self.problem
        x = p.scale * self.matmul("bkgth,bksh->bkgts", q, k)
        if p.soft_cap is not None:
            x = p.soft_cap * jnp.tanh(x / p.soft_cap)
        return jnp.where(visible, x, -jnp.inf), x

    def matmul(self, spec: str, x: Array, y: Array) -> Array:
        """A matrix product of the problem's precision, accumulated in float32."""
        return jnp.einsum(spec, x, y, precision=self.problem.precision, preferred_element_type=jnp.float32)


def cut(x: Array, axis: int, start: Array, size: int) -> Array:
    """``size`` entries of one axis from a traced start."""
    return lax.dynamic_slice_in_dim(x, start, size, axis)


def put(x: Array, axis: int, start: Array, update: Array) -> Array:
    """``x`` with a chunk written back."""
    return lax.dynamic_update_slice_in_dim(x, update.astype(x.dtype), start, axis)


def add(x: Array, axis: int, start: Array, update: Array) -> Array:
    """``x`` with a chunk added."""
    return put(x, axis, start, cut(x, axis, start, update.shape[axis]) + update)


def _pad(x: Array, axis: int, amount: int, fill: float) -> Array:
    if amount == 0:
        return x
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, amount)
    return jnp.pad(x, widths, constant_values=fill)
