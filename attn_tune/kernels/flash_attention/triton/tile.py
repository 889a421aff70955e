"""Device code that the launches share: which tile a program owns, its loads, its logits, its mask and its dropout.

A tile of logits is ``[rows, columns]`` in the forward and in dq and ``[columns, rows]`` in dk/dv. The helpers do not
care: rows and columns come as vectors that were expanded to two axes, and broadcasting does the rest.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

from typing import NamedTuple

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


class Extras(NamedTuple):
    """Pointers at the optional arrays of one batch and head, and the dropout state.

    What is absent holds any scalar, and is not looked at: Triton 3.6 cannot return None in a tuple.
    """

    bias: tl.tensor
    mask: tl.tensor
    q_segments: tl.tensor
    kv_segments: tl.tensor
    q_positions: tl.tensor
    kv_positions: tl.tensor
    seed: tl.tensor


class Rows(NamedTuple):
    """A tile's query rows; ``random`` is the row's part of the dropout hash. Absent as in ``Extras``."""

    index: tl.tensor
    position: tl.tensor
    segment: tl.tensor
    random: tl.tensor


class Columns(NamedTuple):
    """A tile's keys."""

    index: tl.tensor
    position: tl.tensor
    segment: tl.tensor


@triton.jit
def owned_tile(
    blocks: tl.constexpr, heads: tl.constexpr, REVERSED: tl.constexpr, static: tl.constexpr
):
    """The program's ``(block, batch, head)``.

    Heads of a section are innermost, so that programs that run together read the same keys; sections follow one
    another. ``REVERSED`` starts with the last block, the longest under a causal mask: the short ones fill the tail.
    """
    per_section: tl.constexpr = static.heads_per_section * blocks
    program = tl.program_id(0)
    within = program % per_section
    block = within // static.heads_per_section
    if REVERSED:
        block = blocks - 1 - block
    head = program // per_section * static.heads_per_section + within % static.heads_per_section
    return block, head // heads, head % heads


@triton.jit
def head_pointer(base, batch, head, length: tl.constexpr, heads: tl.constexpr, width: tl.constexpr):
    """Row 0 of one head of a BTNH array. In 64 bits: a batch may hold more than 2**31 elements."""
    return base + (batch.to(tl.int64) * (length * heads) + head) * width


@triton.jit
def row_pointer(base, batch, head, length: tl.constexpr, heads: tl.constexpr):
    """Row 0 of one head of a BNT array."""
    return base + (batch * heads + head).to(tl.int64) * length


@triton.jit
def load_tile(
    base,
    start,
    stride: tl.constexpr,
    num_rows: tl.constexpr,
    num_cols: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    RAGGED: tl.constexpr,
):
    """``[ROWS, COLS]`` from row ``start`` on, zero beyond ``num_cols`` and, if ``RAGGED``, beyond ``num_rows``."""
    rows = tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, COLS)[None, :]
    pointers = base + tl.cast(start, tl.int64) * stride + (rows * stride + cols)
    if RAGGED and num_cols < COLS:
        tile = tl.load(pointers, mask=(start + rows < num_rows) & (cols < num_cols), other=0.0)
    elif RAGGED:
        tile = tl.load(pointers, mask=start + rows < num_rows, other=0.0)
    elif num_cols < COLS:
        tile = tl.load(pointers, mask=cols < num_cols, other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def store_tile(
    base,
    start,
    tile,
    stride: tl.constexpr,
    num_rows: tl.constexpr,
    num_cols: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """Stores what lies inside ``[num_rows, num_cols]``, in the pointer's dtype."""
    rows = tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, COLS)[None, :]
    pointers = base + tl.cast(start, tl.int64) * stride + (rows * stride + cols)
    inside = (start + rows < num_rows) & (cols < num_cols)
    tl.store(pointers, tile.to(base.dtype.element_ty), mask=inside)


@triton.jit
def load_lse(base, rows, static: tl.constexpr):
    """Base-2 lse of these rows; plus infinity, which makes every weight 0, beyond the end and for fully masked rows."""
    lse = tl.load(base + rows, mask=rows < static.q_len, other=float("-inf"))
    return tl.where(lse == float("-inf"), float("inf"), lse * LOG2E)


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
def point_extras(
    bias,
    mask,
    q_segments,
    kv_segments,
    q_positions,
    kv_positions,
    dropout,
    batch,
    head,
    static: tl.constexpr,
):
    """The optional arrays moved to one batch and query head."""
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
    return Extras(bias, mask, q_segments, kv_segments, q_positions, kv_positions, seed)


@triton.jit
def load_rows(extras, start, AXIS: tl.constexpr, static: tl.constexpr):
    """The rows from ``start`` on, with a new axis of size 1 at ``AXIS``."""
    index = tl.expand_dims(start + tl.arange(0, static.block_q), AXIS)
    position = index + static.offset
    segment = index
    random = index
    if static.has_positions:
        position = tl.load(extras.q_positions + index, mask=index < static.q_len, other=0)
    if static.has_segments:
        segment = tl.load(extras.q_segments + index, mask=index < static.q_len, other=-1)
    if static.keep_threshold is not None:
        random = mix(extras.seed + index.to(tl.uint32))
    return Rows(index, position, segment, random)


@triton.jit
def load_columns(extras, start, AXIS: tl.constexpr, static: tl.constexpr):
    """The keys from ``start`` on, with a new axis of size 1 at ``AXIS``."""
    index = tl.expand_dims(start + tl.arange(0, static.block_k), AXIS)
    position = index
    segment = index
    if static.has_positions:
        position = tl.load(extras.kv_positions + index, mask=index < static.kv_len, other=0)
    if static.has_segments:
        segment = tl.load(extras.kv_segments + index, mask=index < static.kv_len, other=-2)
    return Columns(index, position, segment)


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
def pair_offsets(
    rows, columns, row_step: tl.constexpr, column_step: tl.constexpr, static: tl.constexpr
):
    """Offsets of a tile of pairs in one head of a bias or mask."""
    index = rows.index
    if static.wide_pairs:
        index = index.to(tl.int64)
    return index * row_step + columns.index * column_step


@triton.jit
def finish_logits(x, extras, rows, columns, EDGE: tl.constexpr, static: tl.constexpr):
    """Base-2 logits over ``late_scale``, minus infinity where a row may not look.

    ``EDGE``: the tile may cross the causal or window edge or the end of the keys. Elsewhere only what can hide any
    pair (dense mask, segments, explicit positions) is looked at.
    """
    if static.soft_cap is not None:
        x = x * (static.soft_cap * LOG2E)
    inside = (rows.index < static.q_len) & (columns.index < static.kv_len)
    if static.bias_strides is not None:
        bias = extras.bias + pair_offsets(
            rows, columns, static.bias_strides[2], static.bias_strides[3], static
        )
        x += tl.load(bias, mask=inside, other=0.0).to(tl.float32) * LOG2E
    if static.mask_strides is not None:
        mask = extras.mask + pair_offsets(
            rows, columns, static.mask_strides[2], static.mask_strides[3], static
        )
        x = tl.where(tl.load(mask, mask=inside, other=0) != 0, x, float("-inf"))
    if static.has_segments:
        x = tl.where(rows.segment == columns.segment, x, float("-inf"))
    if EDGE or static.has_positions:
        if static.right is not None:
            x = tl.where(columns.position <= rows.position + static.right, x, float("-inf"))
        if static.left is not None:
            x = tl.where(columns.position >= rows.position - static.left, x, float("-inf"))
    if EDGE and static.ragged_k:
        x = tl.where(columns.index < static.kv_len, x, float("-inf"))
    return x


@triton.jit
def kept(rows, columns, static: tl.constexpr):
    """Which weights dropout keeps: a function of seed, batch, head, row and column only."""
    bits = mix(rows.random ^ (columns.index.to(tl.uint32) * 0x27D4EB2F))
    return bits >= static.keep_threshold


@triton.jit
def key_range(first_row, static: tl.constexpr):
    """Where the keys of a tile of rows lie: ``(begin, full_begin, full_end, end)``.

    Every visible key is in ``[begin, end)``; keys in ``[full_begin, full_end)`` are visible to all rows of the tile as
    far as causal and window go. Three loops, of which the outer two mask: ``[begin, min(full_begin, end))``,
    ``[full_begin, full_end)`` and ``[max(full_begin, full_end), end)``. All but ``end`` are multiples of ``block_k``.
    """
    block_k: tl.constexpr = static.block_k
    first = first_row + static.offset
    last = tl.minimum(first_row + static.block_q, static.q_len) - 1 + static.offset
    begin = first_row * 0
    full_begin = begin
    end = begin + static.kv_len
    full_end = begin + static.kv_len // block_k * block_k
    if static.skips_left:
        begin = tl.maximum(first - static.left, 0) // block_k * block_k
        full_begin = tl.maximum(last - static.left + block_k - 1, 0) // block_k * block_k
    if static.skips_right:
        end = tl.minimum(last + static.right + 1, static.kv_len)
        full_end = tl.minimum(
            full_end, tl.maximum(first + static.right + 1, 0) // block_k * block_k
        )
    return begin, full_begin, full_end, end


@triton.jit
def row_range(first_column, static: tl.constexpr):
    """Where the rows of a tile of keys lie; as ``key_range``.

    Rows beyond the end need no mask: their lse makes every weight 0. Hence ``full_end`` may be the ragged end.
    """
    block_q: tl.constexpr = static.block_q
    first = first_column - static.offset
    last = tl.minimum(first_column + static.block_k, static.kv_len) - 1 - static.offset
    begin = first_column * 0
    full_begin = begin
    end = begin + static.q_len
    full_end = end
    if static.skips_right:
        begin = tl.maximum(first - static.right, 0) // block_q * block_q
        full_begin = tl.maximum(last - static.right + block_q - 1, 0) // block_q * block_q
    if static.skips_left:
        end = tl.minimum(last + static.left + 1, static.q_len)
        full_end = tl.maximum(first + static.left + 1, 0) // block_q * block_q
        full_end = tl.minimum(full_end, end)
    return begin, full_begin, full_end, end
