"""Ranges of tiles that can share a segment with a tile, found before the launch so that the others are skipped.

Packed documents and padding are long runs of equal ids. A tile of rows and a tile of keys can only share an id if the
ranges of their ids meet, and share one everywhere if both hold a single id and it is the same. That is decided from
the smallest and the largest id of each tile, in O(B * blocks**2) and without a sort, and is right for any ids; what is
skipped is most where the ids are sorted.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array, Int

from attn_tune.kernels.lang.triton.device.static import Static

# Numbers in a row of the ranges.
WIDTH = tl.constexpr(5)


def key_ranges(
    q_segments: Int[Array, "B T"] | None, kv_segments: Int[Array, "B S"] | None, static: Static
) -> Int[Array, "B q_blocks 5"] | None:
    """``(begin, full_begin, full_end, end, full)`` in tiles of keys, for each tile of rows; None unless ``has_ranges``.

    Every key that shares a segment with a row of the tile is in ``[begin, end)``, which is empty or reversed where
    there is none. All keys of ``full`` tiles do with all rows; the first and the last of them are those of
    ``[full_begin, full_end)``, which is a run without a gap if it is as long as that: ``settled`` says so.
    """
    if q_segments is None or kv_segments is None or not static.has_ranges:
        return None
    return _ranges(q_segments, kv_segments, static.block_q, static.block_k)


def row_ranges(
    q_segments: Int[Array, "B T"] | None, kv_segments: Int[Array, "B S"] | None, static: Static
) -> Int[Array, "B kv_blocks 5"] | None:
    """As ``key_ranges`` in tiles of rows, for each tile of keys."""
    if q_segments is None or kv_segments is None or not static.has_ranges:
        return None
    return _ranges(kv_segments, q_segments, static.block_k, static.block_q)


def _ranges(own: Array, other: Array, block: int, other_block: int) -> Array:
    """In as few programs as XLA makes of it, three: each costs 3 us on an H200, a hundredth of a forward."""
    if own.shape == other.shape and block == other_block:
        low, high = _extremes(jnp.stack((own, other)), block)
        (own_min, other_min), (own_max, other_max) = low, high
    else:
        (own_min, own_max), (other_min, other_max) = (
            _extremes(own, block),
            _extremes(other, other_block),
        )
    own_min, own_max = own_min[:, :, None], own_max[:, :, None]
    other_min, other_max = other_min[:, None, :], other_max[:, None, :]
    meets = (own_min <= other_max) & (other_min <= own_max)
    same = (own_min == own_max) & (other_min == other_max) & (own_min == other_min)
    tile = jnp.arange(meets.shape[-1], dtype=jnp.int32)
    none = jnp.int32(tile.size)
    return jnp.stack(
        [
            jnp.where(meets, tile, none).min(-1),
            jnp.where(same, tile, none).min(-1),
            jnp.where(same, tile + 1, 0).max(-1),
            jnp.where(meets, tile + 1, 0).max(-1),
            same.sum(-1, dtype=jnp.int32),
        ],
        axis=-1,
    )


def _extremes(segments: Array, block: int) -> tuple[Array, Array]:
    """The smallest and the largest id of each tile; the last one is filled up with its own last id."""
    *batch, length = segments.shape
    blocks = -(-length // block)
    tiles = segments
    if length % block:
        tiles = jnp.pad(segments, (*((0, 0) for _ in batch), (0, blocks * block - length)), mode="edge")
    tiles = tiles.reshape(*batch, blocks, block)
    return tiles.min(-1), tiles.max(-1)


@triton.jit
def settled(begin, full_begin, full_end, end, full):
    """One row of the ranges as ``begin <= full_begin <= full_end <= end``: ``[end, end)`` where no run is known."""
    is_run = (full > 0) & (full_end - full_begin == full)
    return (
        tl.minimum(begin, end),
        tl.where(is_run, full_begin, end),
        tl.where(is_run, full_end, end),
        end,
    )


@triton.jit
def narrowed(bounds, ranges, batch, block, blocks: tl.constexpr, step: tl.constexpr, static: tl.constexpr):
    """``bounds`` as from ``key_range`` or ``row_range``, cut to what the segments leave.

    ``blocks`` is how many tiles own a row of ``ranges``, ``step`` how many elements the tiles have that it counts.
    """
    begin, full_begin, full_end, end = bounds
    if static.has_ranges:
        row = ranges + (batch * blocks + block) * WIDTH
        first, full_first, full_last, last = settled(
            tl.load(row),
            tl.load(row + 1),
            tl.load(row + 2),
            tl.load(row + 3),
            tl.load(row + 4),
        )
        begin = tl.maximum(begin, first * step)
        full_begin = tl.maximum(full_begin, full_first * step)
        full_end = tl.minimum(full_end, full_last * step)
        end = tl.minimum(end, last * step)
    return begin, full_begin, full_end, end
