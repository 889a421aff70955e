"""Device code of the softmax and its gradient: a transposed tile of q.k, ``[keys, rows]``, in registers."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attn_tune.kernels.flash_attention.triton_hopper_fused.config import ROWS
from attn_tune.kernels.lang.gluon.device import mix
from attn_tune.kernels.lang.triton.device.logits import COLUMN_FACTOR, FACTOR, ROW_FACTOR

_ROWS = gl.constexpr(ROWS)


class Columns(NamedTuple):
    """The keys of one group of warps: numbers, segments, and their part of the dropout hash [64].

    What is absent holds the numbers and is not looked at.
    """

    index: gl.tensor
    segment: gl.tensor
    random: gl.tensor


@gluon.jit
def load_columns(first, batch, kv_segments, layout: gl.constexpr, static: gl.constexpr):
    """The keys from ``first`` on, of a transposed tile of logits in ``layout``."""
    lane = gl.arange(0, _ROWS, gl.SliceLayout(1, layout))
    index = first + lane
    segment = index
    random = index
    if static.has_segments:
        ids = kv_segments + batch.to(gl.int64) * static.kv_len + index
        segment = gl.load(ids, mask=index < static.kv_len, other=-2)
    if static.keep_threshold is not None:
        random = (first + (lane - (lane & 8))).to(gl.uint32) * 0x27D4EB2F
        random ^= random >> 16
    return Columns(index, segment, random)


@gluon.jit
def load_seeds(dropout, batch, static: gl.constexpr):
    """The hash of seed and sequence, and the first head of this shard; loaded once."""
    seeds = (dropout, dropout)
    if static.keep_threshold is not None:
        seed = mix(gl.load(dropout) + 0x9E3779B9)
        seed = mix(seed ^ ((gl.load(dropout + 1) + batch.to(gl.uint32)) * 0x85EBCA6B))
        seeds = (seed, gl.load(dropout + 2))
    return seeds


@gluon.jit
def weights_of(squashed, row_lse, columns, block, first, walk, segments, plan: gl.constexpr, static: gl.constexpr):
    """The softmax weights ``[64, rows]`` of rows from ``first`` on, in tile ``block`` of them, without dropout."""
    layout: gl.constexpr = squashed.type.layout
    x = squashed
    index = first + gl.arange(0, plan.rows, gl.SliceLayout(0, layout))
    edge = (block < walk.full_begin) | (block >= walk.full_end)
    if plan.masks_edge and edge:
        if static.right is not None:
            limit = index + (static.offset + static.right)
            x = gl.where(columns.index[:, None] <= limit[None, :], x, float("-inf"))
        if static.left is not None:
            limit = index + (static.offset - static.left)
            x = gl.where(columns.index[:, None] >= limit[None, :], x, float("-inf"))
    end = (walk.block + 1) * static.block_k > walk.length
    if plan.masks_end and end:
        x = gl.where((columns.index < walk.length)[:, None], x, float("-inf"))
    mixed = (block < walk.same_begin) | (block >= walk.same_end)
    if static.has_segments and mixed:
        segment = segments.reshape([plan.rows]).load(gl.SliceLayout(0, layout))
        x = gl.where(columns.segment[:, None] == segment[None, :], x, float("-inf"))
    return gl.exp2(x * plan.late_scale - row_lse[None, :])


@gluon.jit
def kept(first, head, columns, seeds, layout: gl.constexpr, plan: gl.constexpr, static: gl.constexpr):
    """Whether dropout keeps each weight of rows from ``first`` on: ``dropout.py``.

    Tiles start at multiples of 16. Bit 3 of a lane is known at compile time, and that of an index is not: only so is
    the hash computed once for the four weights that share it.
    """
    seed, first_head = seeds
    seed = mix(seed ^ ((first_head + head.to(gl.uint32)) * 0xC2B2AE35))
    lane = gl.arange(0, plan.rows, gl.SliceLayout(0, layout))
    # As ``mix`` without its last step: that is its own inverse, and is the first of the next hash.
    row = seed + (first + (lane - (lane & 8))).to(gl.uint32)
    row ^= row >> 16
    row *= 0x7FEB352D
    row ^= row >> 15
    row *= 0x846CA68B
    x = row[None, :] ^ columns.random[:, None]
    x *= 0x7FEB352D
    x ^= x >> 15
    key = gl.arange(0, _ROWS, gl.SliceLayout(1, layout))
    row_factor = gl.where((lane & 8) != 0, ROW_FACTOR, 1).to(gl.uint32)
    column_factor = gl.where((key & 8) != 0, COLUMN_FACTOR, 1).to(gl.uint32) * FACTOR
    return x * (row_factor[None, :] * column_factor[:, None]) >= static.keep_threshold
