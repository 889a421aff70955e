"""Device code of packed rows: the query heads of a group are rows of one tile, those of one query side by side.

Packed row ``p`` of a group is query ``p // group_size`` of its head ``p % group_size``. What depends on the head (bias,
mask, dropout) is a column of pointers or words here, one a row, where the other kernels have a scalar.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.device.logits import Extras, Rows, mix, row_factor, row_random
from attn_tune.kernels.lang.triton.device.tile import key_length


@triton.jit
def packed_heads(first, kv_head, static: tl.constexpr):
    """The query head of each row of a tile, ``[block_q]``."""
    index = first + tl.arange(0, static.block_q)
    return kv_head * static.group_size + index % static.group_size


@triton.jit
def packed_offsets(index, batch, kv_head, static: tl.constexpr):
    """The row of each packed row among the ``B * T * N`` of an array of the query side; 64 bits."""
    query = batch.to(tl.int64) * static.q_len + index // static.group_size
    return query * static.num_q_heads + kv_head * static.group_size + index % static.group_size


@triton.jit
def load_packed_queries(q, batch, kv_head, first, static: tl.constexpr):
    """``[block_q, block_h]`` of packed rows, zero beyond the last."""
    index = first + tl.arange(0, static.block_q)
    cols = tl.arange(0, static.block_h)[None, :]
    offsets = packed_offsets(index, batch, kv_head, static)
    inside = (index[:, None] < static.q_len * static.group_size) & (cols < static.head_dim)
    return tl.load(q + offsets[:, None] * static.head_dim + cols, mask=inside, other=0.0)


@triton.jit
def point_packed_extras(optional, batch, heads, static: tl.constexpr):
    """As ``point_extras``, with a column for whatever depends on the head."""
    bias, mask, q_segments, kv_segments, q_positions, kv_positions, dropout, lengths = optional
    wide_batch = batch.to(tl.int64)
    wide_heads = heads.to(tl.int64)[:, None]
    absent = batch
    seed = absent
    if static.bias_strides is not None:
        bias += wide_batch * static.bias_strides[0] + wide_heads * static.bias_strides[1]
    else:
        bias = absent
    if static.mask_strides is not None:
        mask += wide_batch * static.mask_strides[0] + wide_heads * static.mask_strides[1]
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
        absolute_heads = tl.load(dropout + 2) + heads.to(tl.uint32)[:, None]
        seed = mix(tl.load(dropout) + 0x9E3779B9)
        seed = mix(seed ^ (absolute_batch * 0x85EBCA6B))
        seed = mix(seed ^ (absolute_heads * 0xC2B2AE35))
    length = key_length(lengths, batch, static)
    return Extras(bias, mask, q_segments, kv_segments, q_positions, kv_positions, seed, length)


@triton.jit
def load_packed_rows(extras, first, static: tl.constexpr):
    """The queries of a tile as ``[block_q, 1]``; rows beyond the last have an index past ``q_len``."""
    index = ((first + tl.arange(0, static.block_q)) // static.group_size)[:, None]
    position = index + static.offset
    segment = index
    random = index
    factor = index
    if static.has_positions:
        position = tl.load(extras.q_positions + index, mask=index < static.q_len, other=0)
    if static.has_segments:
        segment = tl.load(extras.q_segments + index, mask=index < static.q_len, other=-1)
    if static.keep_threshold is not None:
        # Rows of a tile are not those of the array here: only columns share their hash.
        random = row_random(extras.seed, index & ~8)
        factor = row_factor(index)
    return Rows(index, position, segment, random, factor)


@triton.jit
def packed_key_range(first, length, static: tl.constexpr):
    """As ``key_range``, for the queries that a tile of packed rows holds; with lengths, of the keys that count."""
    block_k: tl.constexpr = static.block_k
    first_query = first // static.group_size + static.offset
    last_query = (first + static.block_q - 1) // static.group_size
    last_query = tl.minimum(last_query, static.q_len - 1) + static.offset
    begin = first * 0
    full_begin = begin
    end = begin + static.kv_len
    full_end = begin + static.kv_len // block_k * block_k
    if static.skips_left:
        begin = tl.maximum(first_query - static.left, 0) // block_k * block_k
        full_begin = tl.maximum(last_query - static.left + block_k - 1, 0) // block_k * block_k
    if static.skips_right:
        end = tl.minimum(last_query + static.right + 1, static.kv_len)
        full_end = tl.minimum(full_end, tl.maximum(first_query + static.right + 1, 0) // block_k * block_k)
    if static.has_lengths:
        end = tl.minimum(end, length)
        full_end = tl.minimum(full_end, length // block_k * block_k)
    return begin, full_begin, full_end, end


@triton.jit
def part_of(bounds, split, num_splits: tl.constexpr, static: tl.constexpr):
    """The bounds of one of ``num_splits`` parts of a key range, whole blocks each; the last ones may be empty."""
    begin, full_begin, full_end, end = bounds
    blocks = (tl.maximum(end - begin, 0) + static.block_k - 1) // static.block_k
    per_part = (blocks + num_splits - 1) // num_splits
    low = begin + split * per_part * static.block_k
    high = low + per_part * static.block_k
    full_begin = tl.minimum(tl.maximum(full_begin, low), high)
    full_end = tl.minimum(tl.maximum(full_end, low), high)
    return low, full_begin, full_end, tl.minimum(end, high)
