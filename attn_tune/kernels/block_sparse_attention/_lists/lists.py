"""Lists of the tiles that a program walks, made of the mask of blocks on the device before each launch.

A tile of the scores is *full* where every row sees every key, *cut* where some may, and *hidden* elsewhere. A program's
list holds its full tiles, which need no mask, and behind them those that are cut. Causality, window and segments are
looked at as well as the mask: listed blocks that they hide are in no list.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array, Bool, Int

from attn_tune.kernels.lang.triton.device.static import Static, static_of
from attn_tune.kernels.lang.triton.tiles import Tile
from attn_tune.ops.block_sparse_attention.operands import Operands
from attn_tune.ops.block_sparse_attention.problem import Problem


class Lists(NamedTuple):
    """The arrays that a launch reads besides its operands; ``owned`` counts its tiles along the owned side.

    Attributes:
      tiles: numbers of walked tiles, full ones first. Of keys that several query heads with masks of their own share:
        ``member * row tiles + row tile``.
      counts: full tiles of each list, and full and cut ones.
      order: owned tiles by the length of their lists, longest first; None: in their own order.
    """

    tiles: Int[Array, "_b _n owned width"]
    counts: Int[Array, "_b _n owned 2"]
    order: Int[Array, "_b _n owned"] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """Compile-time constants of a launch with lists.

    Attributes:
      width: entries of one list.
      batch_step, head_step: lists per batch entry and per (query or key) head, in rows of ``owned``; 0: shared.
      members: query heads of a group with lists of their own.
      has_order: the programs start by ``order``; without, the last tiles of rows first under a causal edge.
      has_cuts: some tile may need a mask.
      spans_blocks: a tile holds several blocks of the mask, so that the mask of one that is cut is read.
      mask_block_q, mask_block_k, mask_columns: of the mask of blocks.
      mask_batch, mask_head: elements of the mask per batch entry and query head; 0: shared.
    """

    width: int
    batch_step: int
    head_step: int
    members: int
    has_order: bool
    has_cuts: bool
    spans_blocks: bool
    mask_block_q: int
    mask_block_k: int
    mask_columns: int
    mask_batch: int
    mask_head: int


def listed_of(problem: Problem, tile: Tile, operands: Operands, *, longest_first: bool) -> tuple[Static, Listed, Lists]:
    """The constants and the lists of one launch."""
    p = problem
    static = static_of(p, tile, ranges=True)
    full, seen = _kinds(p, static, operands)
    members = 1
    if tile.owns_keys:
        full, seen = full.swapaxes(2, 3), seen.swapaxes(2, 3)
        if full.shape[1] > 1 and p.group_size > 1:
            members = p.group_size
            full, seen = (_by_key_heads(x, p.num_kv_heads) for x in (full, seen))
    batch, heads, owned, width = full.shape
    kind = jnp.where(full, 0, jnp.where(seen, 1, 2)).astype(jnp.int32)
    # One array sorted: the kind above, the number of the tile below.
    ranked = jnp.sort(kind * width + jnp.arange(width, dtype=jnp.int32), axis=-1)
    totals = seen.sum(-1, dtype=jnp.int32)
    counts = jnp.stack([full.sum(-1, dtype=jnp.int32), totals], axis=-1)
    order = jnp.argsort(-totals, axis=-1).astype(jnp.int32) if longest_first else None
    rows, columns = operands.block_mask.shape[2:]
    of_batch, of_heads = operands.block_mask.shape[:2]
    spans = tile.block_q > p.mask_block_q or tile.block_k > p.mask_block_k
    listed = Listed(
        width=width,
        batch_step=heads * owned if batch > 1 else 0,
        head_step=owned if heads > 1 else 0,
        members=members,
        has_order=longest_first,
        has_cuts=spans or static.ragged_k or p.has_segments or p.bounds != (None, None),
        spans_blocks=spans,
        mask_block_q=p.mask_block_q,
        mask_block_k=p.mask_block_k,
        mask_columns=columns,
        mask_batch=of_heads * rows * columns if of_batch > 1 else 0,
        mask_head=rows * columns if of_heads > 1 else 0,
    )
    return static, listed, Lists(ranked % width, counts, order)


def _kinds(p: Problem, static: Static, o: Operands) -> tuple[Bool[Array, "_b _n R C"], Bool[Array, "_b _n R C"]]:
    """The tiles that are full, and those that are full or cut."""
    full, seen = o.block_mask, o.block_mask
    for axis, block, tile, tiles in (
        (2, p.mask_block_q, static.block_q, static.q_blocks),
        (3, p.mask_block_k, static.block_k, static.kv_blocks),
    ):
        full, seen = _in_tiles(full, axis, block, tile, tiles, all_of=True), _in_tiles(seen, axis, block, tile, tiles)
    left, right = p.bounds
    row = (jnp.arange(static.q_blocks, dtype=jnp.int32) * static.block_q + p.offset)[:, None]
    last_row = jnp.minimum(row + static.block_q, p.kv_len) - 1
    column = jnp.arange(static.kv_blocks, dtype=jnp.int32) * static.block_k
    last_column = jnp.minimum(column + static.block_k, p.kv_len) - 1
    full = full & (column + static.block_k <= p.kv_len)
    if right is not None:
        full, seen = full & (last_column <= row + right), seen & (column <= last_row + right)
    if left is not None:
        full, seen = full & (column >= last_row - left), seen & (last_column >= row - left)
    if o.q_segments is not None and o.kv_segments is not None:
        low, high = (x[:, None, :, None] for x in _extremes(o.q_segments, static.block_q))
        kv_low, kv_high = (x[:, None, None, :] for x in _extremes(o.kv_segments, static.block_k))
        full = full & (low == high) & (kv_low == kv_high) & (low == kv_low)
        seen = seen & (low <= kv_high) & (kv_low <= high)
    return full, seen


def _in_tiles(x: Array, axis: int, block: int, tile: int, tiles: int, *, all_of: bool = False) -> Array:
    """A mask of blocks as one of tiles along an axis: of any of the blocks that a tile touches, or of all."""
    if tile <= block:
        return jnp.repeat(x, block // tile, axis=axis)[(slice(None),) * axis + (slice(tiles),)]
    ratio = tile // block
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, tiles * ratio - x.shape[axis])
    # Padding decides nothing: it is True where all blocks must be listed, and False where any is enough.
    x = jnp.pad(x, widths, constant_values=all_of)
    x = x.reshape(*x.shape[:axis], tiles, ratio, *x.shape[axis + 1 :])
    return x.all(axis + 1) if all_of else x.any(axis + 1)


def _by_key_heads(x: Bool[Array, "_b N owned width"], kv_heads: int) -> Bool[Array, "_b K owned members*width"]:
    """The lists of a group's query heads, one behind the other."""
    batch, heads, owned, width = x.shape
    x = x.reshape(batch, kv_heads, heads // kv_heads, owned, width)
    return x.swapaxes(2, 3).reshape(batch, kv_heads, owned, -1)


def _extremes(segments: Int[Array, "B L"], block: int) -> tuple[Array, Array]:
    """The smallest and the largest id of each tile; the last one is filled up with its own last id."""
    batch, length = segments.shape
    padded = jnp.pad(segments, ((0, 0), (0, -length % block)), mode="edge")
    tiles = padded.reshape(batch, -1, block)
    return tiles.min(-1), tiles.max(-1)


@triton.jit
def list_of(tiles, counts, order, block, batch, head, blocks: tl.constexpr, listed: tl.constexpr):
    """``(owned tile, its list, full tiles, all tiles)`` of the program's place ``block`` among a head's ``blocks``."""
    lists = batch * listed.batch_step + head * listed.head_step
    if listed.has_order:
        block = tl.load(order + lists + block)
    row = lists + block
    full = tl.load(counts + row * 2)
    seen = tl.load(counts + row * 2 + 1)
    return block, tiles + row.to(tl.int64) * listed.width, full, seen


@triton.jit
def mask_of_head(block_mask, batch, head, listed: tl.constexpr):
    """The mask of blocks of one batch entry and query head."""
    return block_mask + (batch * listed.mask_batch + head.to(tl.int64) * listed.mask_head)


@triton.jit
def hide_unlisted(x, mask, rows, columns, EDGE: tl.constexpr, listed: tl.constexpr, static: tl.constexpr):
    """Base-2 logits, minus infinity where their own block is not listed; of tiles that hold several blocks."""
    if EDGE and listed.spans_blocks:
        inside = (rows.index < static.q_len) & (columns.index < static.kv_len)
        block = rows.index // listed.mask_block_q * listed.mask_columns + columns.index // listed.mask_block_k
        x = tl.where(tl.load(mask + block, mask=inside, other=0) != 0, x, float("-inf"))
    return x
