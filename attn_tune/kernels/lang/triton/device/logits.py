"""Device code that the launches share: from q.k to a logit, its mask and dropout, and the way back through the softmax.

A tile of logits is ``[rows, columns]`` in the forward, in dq and in dbias and ``[columns, rows]`` in dk/dv. The helpers
do not care: rows and columns come as vectors that were expanded to two axes, and broadcasting does the rest.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from typing import NamedTuple

import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.device.tile import LOG2E, key_length

# See ``dropout.py``: what tells the four weights that share a hash apart.
FACTOR = tl.constexpr(0x846CA68B)
ROW_FACTOR = tl.constexpr(0x770D1A13)
COLUMN_FACTOR = tl.constexpr(0x74C90AA3)


class Extras(NamedTuple):
    """Pointers at the optional arrays of one batch and head, the dropout state, and the number of keys that count.

    An absent array is any scalar, which is never read: Triton 3.6 cannot return None in a tuple.
    """

    bias: tl.tensor
    mask: tl.tensor
    q_segments: tl.tensor
    kv_segments: tl.tensor
    q_positions: tl.tensor
    kv_positions: tl.tensor
    seed: tl.tensor
    length: tl.tensor


class Rows(NamedTuple):
    """A tile's query rows; ``random`` and ``factor`` are their part of the dropout bits. Absent as in ``Extras``."""

    index: tl.tensor
    position: tl.tensor
    segment: tl.tensor
    random: tl.tensor
    factor: tl.tensor


class Columns(NamedTuple):
    """A tile's keys; as ``Rows``."""

    index: tl.tensor
    position: tl.tensor
    segment: tl.tensor
    random: tl.tensor
    factor: tl.tensor


@triton.jit
def mix(x):
    """A 32-bit integer hash with low bias ("lowbias32" of Chris Wellons' hash-prospector)."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@triton.jit
def row_random(seed, pair):
    """The row's part of the hash of a weight; bit 3 of the row is cleared in ``pair``.

    ``mix`` without its last step: ``x ^= x >> 16`` is linear and its own inverse, and is the next hash's first step.
    """
    x = seed + pair.to(tl.uint32)
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    return x


@triton.jit
def row_factor(index):
    """The row's part of the last multiplier, which tells apart the four weights that share a hash."""
    return tl.where((index & 8) != 0, ROW_FACTOR, 1).to(tl.uint32)


@triton.jit
def point_extras(optional, batch, head, static: tl.constexpr):
    """The optional arrays, in the order of the kernels' parameters, moved to one batch and query head."""
    bias, mask, q_segments, kv_segments, q_positions, kv_positions, dropout, lengths = optional
    wide_batch = batch.to(tl.int64)
    wide_head = head.to(tl.int64)
    absent = batch
    seed = absent
    if static.bias_strides is not None:
        bias += wide_batch * static.bias_strides[0] + wide_head * static.bias_strides[1]
    else:
        bias = absent
    if static.mask_strides is not None:
        mask += wide_batch * static.mask_strides[0] + wide_head * static.mask_strides[1]
    else:
        mask = absent
    if static.has_segments:
        q_segments += wide_batch * static.q_len
        kv_segments += wide_batch * static.kv_len
    else:
        q_segments = absent
        kv_segments = absent
    if static.has_positions:
        q_positions += wide_batch * static.q_len
        kv_positions += wide_batch * static.kv_len
    else:
        q_positions = absent
        kv_positions = absent
    if static.keep_threshold is not None:
        absolute_batch = tl.load(dropout + 1) + batch.to(tl.uint32)
        absolute_head = tl.load(dropout + 2) + head.to(tl.uint32)
        seed = mix(tl.load(dropout) + 0x9E3779B9)
        seed = mix(seed ^ (absolute_batch * 0x85EBCA6B))
        seed = mix(seed ^ (absolute_head * 0xC2B2AE35))
    length = key_length(lengths, batch, static)
    return Extras(bias, mask, q_segments, kv_segments, q_positions, kv_positions, seed, length)


@triton.jit
def load_rows(extras, start, AXIS: tl.constexpr, static: tl.constexpr):
    """The rows from ``start`` on, with a new axis of size 1 at ``AXIS``."""
    tl.static_assert(static.block_q % 16 == 0)
    index = tl.expand_dims(start + tl.arange(0, static.block_q), AXIS)
    position = index + static.offset
    segment = index
    random = index
    factor = index
    if static.has_positions:
        position = tl.load(extras.q_positions + index, mask=index < static.q_len, other=0)
    if static.has_segments:
        segment = tl.load(extras.q_segments + index, mask=index < static.q_len, other=-1)
    if static.keep_threshold is not None:
        # A tile starts at a multiple of 16. Bit 3 of the lane is known at compile time, that of ``index`` is not: only
        # so is the hash computed once for the four weights. Not ``lane & ~8``: LLVM finds that equal for two lanes only
        # where nothing else reads them.
        lane = tl.expand_dims(tl.arange(0, static.block_q), AXIS)
        random = row_random(extras.seed, start + (lane - (lane & 8)))
        factor = row_factor(lane)
    return Rows(index, position, segment, random, factor)


@triton.jit
def load_columns(extras, start, AXIS: tl.constexpr, static: tl.constexpr):
    """The keys from ``start`` on, with a new axis of size 1 at ``AXIS``."""
    tl.static_assert(static.block_k % 16 == 0)
    index = tl.expand_dims(start + tl.arange(0, static.block_k), AXIS)
    position = index
    segment = index
    random = index
    factor = index
    if static.has_positions:
        position = tl.load(extras.kv_positions + index, mask=index < static.kv_len, other=0)
    if static.has_segments:
        segment = tl.load(extras.kv_segments + index, mask=index < static.kv_len, other=-2)
    if static.keep_threshold is not None:
        lane = tl.expand_dims(tl.arange(0, static.block_k), AXIS)
        random = (start + (lane - (lane & 8))).to(tl.uint32) * 0x27D4EB2F
        random ^= random >> 16
        factor = tl.where((lane & 8) != 0, COLUMN_FACTOR, 1).to(tl.uint32) * FACTOR
    return Columns(index, position, segment, random, factor)


@triton.jit
def squash(product, static: tl.constexpr):
    """q.k on its way to a logit: scaled, rounded to the logits' dtype, and with a soft cap already through ``tanh``.

    The gradient through the cap is ``1 - squash**2``, so that the backward keeps this value.
    """
    x = product
    if static.logits_dtype == "float32":
        if static.dot_scale != 1.0:
            x = product * static.dot_scale
    else:
        # Rounding is of the natural logit, so that the scale cannot be merged with a later factor.
        if static.logits_dtype == "bfloat16":
            x = (product * static.scale).to(tl.bfloat16).to(tl.float32)
        else:
            x = (product * static.scale).to(tl.float16).to(tl.float32)
        x = x * static.unit
    if static.soft_cap is not None:
        # tanh by exp2: exact limits at both ends, and libdevice is not needed. tanh.approx has 11 bits only.
        tanh = 1.0 - 2.0 / (1.0 + tl.exp2(x * (2.0 * LOG2E)))
        # Near zero that difference loses digits, and the cap multiplies what is lost: at a cap of 30 the lse was off by
        # 4e-6. The odd series up to x**9 instead.
        square = x * x
        series = -17.0 / 315 + square * (62.0 / 2835)
        series = 1.0 + square * (-1.0 / 3 + square * (2.0 / 15 + square * series))
        x = tl.where(tl.abs(x) < 0.3, x * series, tanh)
    return x


@triton.jit
def pair_offsets(rows, columns, row_step: tl.constexpr, column_step: tl.constexpr, static: tl.constexpr):
    """Offsets of a tile of pairs in one head of a bias or mask."""
    index = rows.index
    if static.wide_pairs:
        index = index.to(tl.int64)
    return index * row_step + columns.index * column_step


@triton.jit
def finish_logits(x, extras, rows, columns, EDGE: tl.constexpr, static: tl.constexpr):
    """Base-2 logits over ``late_scale``, minus infinity where a row may not look.

    ``EDGE``: the tile may cross the causal or window edge, the end of the keys or, with ranges, that of a segment.
    Elsewhere only what can hide any pair (dense mask, explicit positions, segments without ranges) is looked at.
    """
    if static.soft_cap is not None:
        x = x * (static.soft_cap * LOG2E)
    inside = (rows.index < static.q_len) & (columns.index < static.kv_len)
    if static.bias_strides is not None:
        bias = extras.bias + pair_offsets(rows, columns, static.bias_strides[2], static.bias_strides[3], static)
        x += tl.load(bias, mask=inside, other=0.0).to(tl.float32) * LOG2E
    if static.mask_strides is not None:
        mask = extras.mask + pair_offsets(rows, columns, static.mask_strides[2], static.mask_strides[3], static)
        x = tl.where(tl.load(mask, mask=inside, other=0) != 0, x, float("-inf"))
    if static.has_segments and (EDGE or not static.has_ranges):
        x = tl.where(rows.segment == columns.segment, x, float("-inf"))
    if EDGE or static.has_positions:
        if static.right is not None:
            x = tl.where(columns.position <= rows.position + static.right, x, float("-inf"))
        if static.left is not None:
            x = tl.where(columns.position >= rows.position - static.left, x, float("-inf"))
    if EDGE and static.ragged_k and not static.has_lengths:
        x = tl.where(columns.index < static.kv_len, x, float("-inf"))
    return x


@triton.jit
def kept(rows, columns, static: tl.constexpr):
    """Whether dropout keeps each weight: a function of seed, batch, head, row and column only; see ``dropout.py``."""
    x = rows.random ^ columns.random
    x *= 0x7FEB352D
    x ^= x >> 15
    return x * (rows.factor * columns.factor) >= static.keep_threshold


@triton.jit
def differentiate(
    squashed,
    dout_tile,
    v_tile,
    statistics,
    extras,
    rows,
    columns,
    EDGE: tl.constexpr,
    static: tl.constexpr,
):
    """The gradient of a ``[rows, columns]`` tile of logits after soft cap and bias; ``squashed`` as from ``squash``."""
    row_lse, row_delta = statistics
    x = finish_logits(squashed, extras, rows, columns, EDGE, static)
    weights = tl.exp2(x * static.late_scale - row_lse[:, None])
    dweights = tl.dot(dout_tile, tl.trans(v_tile), input_precision=static.precision)
    if static.keep_threshold is not None:
        keep = kept(rows, columns, static)
        dweights = tl.where(keep, dweights * static.keep_scale, 0.0)
    return weights * (dweights - row_delta[:, None])
