"""Which tiles of the other side share a segment with a tile: found before the launch, so that the others are skipped.

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

from attn_tune.kernels.flash_attention.triton.static import Static


def key_ranges(
    q_segments: Int[Array, "B T"] | None, kv_segments: Int[Array, "B S"] | None, static: Static
) -> Int[Array, "B q_blocks 4"] | None:
    """``(begin, full_begin, full_end, end)`` in tiles of keys, for each tile of rows; None without segments.

    Every key that shares a segment with a row of the tile is in ``[begin, end)``, which is empty where there is none;
    all keys of ``[full_begin, full_end)`` do with all rows, and that is ``[end, end)`` where no such run is known.
    """
    if q_segments is None or kv_segments is None:
        return None
    return _ranges(_extremes(q_segments, static.block_q), _extremes(kv_segments, static.block_k))


def row_ranges(
    q_segments: Int[Array, "B T"] | None, kv_segments: Int[Array, "B S"] | None, static: Static
) -> Int[Array, "B kv_blocks 4"] | None:
    """As ``key_ranges`` in tiles of rows, for each tile of keys."""
    if q_segments is None or kv_segments is None:
        return None
    return _ranges(_extremes(kv_segments, static.block_k), _extremes(q_segments, static.block_q))


def _extremes(segments: Array, block: int) -> tuple[Array, Array]:
    """The smallest and the largest id of each tile; the last one is filled up with its own last id."""
    batch, length = segments.shape
    blocks = -(-length // block)
    tiles = jnp.pad(segments, ((0, 0), (0, blocks * block - length)), mode="edge")
    tiles = tiles.reshape(batch, blocks, block)
    return tiles.min(-1), tiles.max(-1)


def _ranges(own: tuple[Array, Array], other: tuple[Array, Array]) -> Array:
    (own_min, own_max), (other_min, other_max) = (
        (own[0][:, :, None], own[1][:, :, None]),
        (other[0][:, None, :], other[1][:, None, :]),
    )
    meets = (own_min <= other_max) & (other_min <= own_max)
    same = (own_min == own_max) & (other_min == other_max) & (own_min == other_min)
    tile = jnp.arange(meets.shape[-1], dtype=jnp.int32)

    def span(chosen: Array) -> tuple[Array, Array]:
        begin = jnp.where(chosen, tile, jnp.int32(tile.size)).min(-1)
        end = jnp.where(chosen, tile + 1, 0).max(-1)
        return jnp.minimum(begin, end), end

    begin, end = span(meets)
    full_begin, full_end = span(same)
    # Only a run without a gap is a range that needs no comparing.
    is_run = (full_end - full_begin == same.sum(-1, dtype=jnp.int32)) & (full_end > 0)
    full_begin = jnp.where(is_run, full_begin, end)
    full_end = jnp.where(is_run, full_end, end)
    return jnp.stack([begin, full_begin, full_end, end], axis=-1)


@triton.jit
def narrowed(
    bounds, ranges, batch, block, blocks: tl.constexpr, step: tl.constexpr, static: tl.constexpr
):
    """``bounds`` as from ``key_range`` or ``row_range``, cut to what the segments leave.

    ``blocks`` is how many tiles own a row of ``ranges``, ``step`` how many elements the tiles have that it counts.
    """
    begin, full_begin, full_end, end = bounds
    if static.has_ranges:
        row = ranges + (batch * blocks + block) * 4
        begin = tl.maximum(begin, tl.load(row) * step)
        full_begin = tl.maximum(full_begin, tl.load(row + 1) * step)
        full_end = tl.minimum(full_end, tl.load(row + 2) * step)
        end = tl.minimum(end, tl.load(row + 3) * step)
    return begin, full_begin, full_end, end
