"""Lists of the tiles that segments and positions leave visible, as FlashAttention-4's kernels walk them."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from attn_tune.kernels.flash_attention._fa4.shapes import has_mask
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem


class Lists(NamedTuple):
    """For each of R tiles of one side, which of C tiles of the other it meets, in ascending order.

    Attributes:
      some, some_tiles: how many tiles hold hidden pairs and visible ones by ids and positions, and which.
      all_, all_tiles: how many hold no pair that these hide; the kernels hide what causality and windows do.
    """

    some: Int32[Array, "B R"]
    some_tiles: Int32[Array, "B R C"]
    all_: Int32[Array, "B R"]
    all_tiles: Int32[Array, "B R C"]


def listed(
    problem: Problem, operands: Operands, block_q: int, block_k: int, *, by_keys: bool = False
) -> tuple[Array, ...]:
    """``Lists`` of key tiles for each tile of queries, or the other way ``by_keys``; empty without ids and positions.

    What a tile holds is known by the least and the greatest id and position of either side: a tile may be listed that
    has no visible pair, never the other way.
    """
    if not has_mask(problem):
        return ()
    least, greatest = _visibility(problem, operands, block_q, block_k)
    if by_keys:
        least, greatest = least.mT, greatest.mT
    counts, tiles = _in_order(jnp.stack([greatest & ~least, greatest & least]))
    return Lists(counts[0], tiles[0], counts[1], tiles[1])


def _visibility(
    p: Problem, operands: Operands, block_q: int, block_k: int
) -> tuple[Bool[Array, "B Q K"], Bool[Array, "B Q K"]]:
    """Whether ids and positions hide nothing of a tile, and whether something of it may be visible."""
    shape = (p.batch, -(-p.q_len // block_q), -(-p.kv_len // block_k))
    nothing_hidden, some_seen = jnp.ones(shape, bool), jnp.ones(shape, bool)
    if p.has_segments:
        (q_low, q_high), (k_low, k_high) = _range(operands.q_segments, block_q), _range(operands.kv_segments, block_k)
        q_low, q_high, k_low, k_high = q_low[:, :, None], q_high[:, :, None], k_low[:, None], k_high[:, None]
        some_seen &= (q_low <= k_high) & (k_low <= q_high)
        nothing_hidden &= (q_low == q_high) & (k_low == k_high)
    if p.has_positions:
        q_positions, k_positions = operands.q_positions, operands.kv_positions
    else:
        q_positions = jnp.broadcast_to(jnp.arange(p.q_len) + p.offset, (1, p.q_len))
        k_positions = jnp.broadcast_to(jnp.arange(p.kv_len), (1, p.kv_len))
    (q_low, q_high), (k_low, k_high) = _range(q_positions, block_q), _range(k_positions, block_k)
    nearest, furthest = k_low[:, None] - q_high[:, :, None], k_high[:, None] - q_low[:, :, None]
    left, right = p.bounds
    if right is not None:
        some_seen &= nearest <= right
        nothing_hidden &= (furthest <= right) | (not p.has_positions)
    if left is not None:
        some_seen &= furthest >= -left
        nothing_hidden &= (nearest >= -left) | (not p.has_positions)
    return nothing_hidden, some_seen


def _range(marks: Any, block: int) -> tuple[Int32[Array, "B R"], Int32[Array, "B R"]]:
    """The least and the greatest of the ids or positions [B, L] of each tile."""
    marks = marks.astype(jnp.int32)
    padded = jnp.pad(marks, ((0, 0), (0, -marks.shape[1] % block)), mode="edge")
    tiles = padded.reshape(len(marks), -1, block)
    return tiles.min(-1), tiles.max(-1)


def _in_order(chosen: Bool[Array, "*rest C"]) -> tuple[Int32[Array, "*rest"], Int32[Array, "*rest C"]]:
    """The number of those chosen in the last axis, and their places, in front of what is not read."""
    # A sort would take longer than this, of which no array but the results is stored.
    ranks = jnp.cumsum(chosen, axis=-1, dtype=jnp.int32)
    before = ranks[..., None, :] <= jnp.arange(chosen.shape[-1])[:, None]
    return ranks[..., -1], before.sum(-1, dtype=jnp.int32)
