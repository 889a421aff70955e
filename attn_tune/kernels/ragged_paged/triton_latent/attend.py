"""Device code of a tile of rows that walks latents: keys whose first columns are values.

A tile of keys is in shared memory once, for the logits and for the values. The softmax is that of FlashAttention-2
(arXiv 2307.08691, algorithm 1) in base 2; keys that all rows of a tile see are not masked.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.device.tile import LOG2E
from attn_tune.kernels.paged_decode.triton.codes import wide


@triton.jit
def attend(arrays, places, is_row, sequence, first_row, count, length, causal: tl.constexpr, static: tl.constexpr):
    """The output and the base-2 lse of a tile's rows; of those that see nothing zero and minus infinity, or a sink.

    Args:
      places, is_row: the places of the rows among those of all tokens, and whether each is one.
      first_row, count: the first row of the tile in its sequence, and the queries of that.
      length: tokens of the sequence.
    """
    q, k, page_table, sinks, k_scale = arrays
    heads: tl.constexpr = static.num_q_heads
    row = first_row + tl.arange(0, static.block_q)
    cols = tl.arange(0, static.block_v)[None, :]
    q += places[:, None] * static.head_dim
    q_tile = tl.load(q + cols, mask=is_row[:, None] & (cols < static.v_head_dim), other=0.0)
    # Not None where there is nothing beside latents: a loop cannot capture it.
    q_rest = q_tile
    if static.rest > 0:
        rest_cols = static.v_head_dim + tl.arange(0, static.block_r)[None, :]
        q_rest = tl.load(q + rest_cols, mask=is_row[:, None] & (rest_cols < static.head_dim), other=0.0)

    # What multiplies a row of logits, and the output.
    row_scale = static.dot_scale
    out_scale = 1.0
    if static.kv_scale == "tensor" or static.kv_scale == "head":
        out_scale = tl.load(k_scale)
        row_scale = out_scale * static.dot_scale
    # Float16 holds every code exactly, and is the one conversion from float8 that the hardware has. Rows of bfloat16
    # queries become at most 2 before they are float16, by a power of two.
    if static.has_codes and static.kv_scale != "block" and q_tile.dtype == tl.bfloat16:
        largest = tl.max(tl.abs(q_tile.to(tl.float32)), 1)
        if static.rest > 0:
            largest = tl.maximum(largest, tl.max(tl.abs(q_rest.to(tl.float32)), 1))
        power = tl.exp2(tl.floor(tl.log2(tl.maximum(largest, 1e-30))))[:, None]
        q_tile = (q_tile.to(tl.float32) / power).to(tl.float16)
        if static.rest > 0:
            q_rest = (q_rest.to(tl.float32) / power).to(tl.float16)
        row_scale *= power

    maximum = tl.full([static.block_q], float("-inf"), tl.float32)
    total = tl.full([static.block_q], 0.0, tl.float32)
    acc = tl.full([static.block_q, static.block_v], 0.0, tl.float32)
    if sinks is not None:
        maximum = tl.load(sinks + row % heads) * LOG2E
        total += tl.where(maximum == float("-inf"), 0.0, 1.0)

    # The last query of a sequence stands at its last token; of a call that is not causal all do.
    if causal:
        first_position = first_row // heads + (length - count)
        position = row // heads + (length - count)
        last_query = tl.minimum((first_row + static.block_q - 1) // heads, count - 1)
        stop = tl.maximum(last_query + (length - count) + 1, 0)
    else:
        first_position = length - 1
        position = row * 0 + (length - 1)
        stop = length
    lowest = length * 0
    whole = tl.maximum(first_position + 1, 0) // static.block_k * static.block_k
    if static.left is not None:
        lowest = tl.maximum(first_position - static.left, 0)
        whole = lowest // static.block_k * static.block_k
    begin = lowest // static.block_k * static.block_k
    if static.table_width > 0:
        page_table += sequence.to(tl.int64) * static.table_width

    arrays = (k, page_table, k_scale)
    queries = (q_tile, q_rest)
    state = (acc, total, maximum)
    # Keys that every row sees, and those that some do not.
    for start in tl.range(begin, whole, static.block_k):
        state = _step(state, arrays, queries, row_scale, position, sequence, start, lowest, stop, False, static)
    for start in tl.range(whole, stop, static.block_k):
        state = _step(state, arrays, queries, row_scale, position, sequence, start, lowest, stop, True, static)
    acc, total, maximum = state
    seen = total > 0
    safe = tl.where(seen, total, 1.0)
    log_sum = tl.where(seen, maximum + tl.log2(safe), float("-inf"))
    return acc * (out_scale * tl.where(seen, 1.0 / safe, 0.0))[:, None], log_sum


@triton.jit
def _step(
    state,
    arrays,
    queries,
    row_scale,
    position,
    sequence,
    start,
    lowest,
    stop,
    MASKED: tl.constexpr,
    static: tl.constexpr,
):
    """The accumulator, denominator and maximum after one tile of keys."""
    acc, total, maximum = state
    k, page_table, k_scale = arrays
    q_tile, q_rest = queries
    cols = tl.arange(0, static.block_v)[None, :]
    key = start + tl.arange(0, static.block_k)
    is_key = key >= 0
    if MASKED:
        is_key = (key >= lowest) & (key < stop)
    if static.one_page:
        # One address for the tile: those of its rows differ by constants, which cost no registers.
        page, first = sequence, start
        if static.table_width > 0:
            page, first = tl.load(page_table + start // static.page_size), start % static.page_size
        place = page.to(tl.int64) * static.page_size + first
        token = tl.arange(0, static.block_k).to(tl.int64)
    else:
        page = tl.load(page_table + key // static.page_size, mask=is_key, other=0)
        place = tl.full([], 0, tl.int64)
        token = page.to(tl.int64) * static.page_size + key % static.page_size
    if static.kv_scale == "block":
        WIDTH: tl.constexpr = static.v_head_dim // 32 * 33 + 2 * static.rest
        keys = k + place * WIDTH + (token * WIDTH)[:, None]
        latents = _unpacked(keys, is_key, q_tile.dtype, static)
        # Behind codes and scales.
        behind = (keys + static.v_head_dim // 32 * 33).to(tl.pointer_type(q_tile.dtype))
    else:
        keys = k + place * static.head_dim + (token * static.head_dim)[:, None]
        latents = tl.load(keys + cols, mask=is_key[:, None] & (cols < static.v_head_dim), other=0.0)
        latents = wide(latents, q_tile.dtype, static.ptx, True)
        behind = keys + static.v_head_dim
    x = tl.dot(q_tile, tl.trans(latents), input_precision=static.precision)
    if static.rest > 0:
        rest_cols = tl.arange(0, static.block_r)[None, :]
        rest = tl.load(behind + rest_cols, mask=is_key[:, None] & (rest_cols < static.rest), other=0.0)
        rest = wide(rest, q_tile.dtype, static.ptx, False)
        x = tl.dot(q_rest, tl.trans(rest), x, input_precision=static.precision)
    x *= row_scale
    if static.kv_scale == "token":
        scales = tl.load(k_scale + place + token, mask=is_key, other=0.0)[None, :]
        x *= scales
    if static.soft_cap is not None:
        # tanh by exp2: exact limits at both ends, and libdevice is not needed. tanh.approx has 11 bits only.
        x = (1.0 - 2.0 / (1.0 + tl.exp2(x * (2.0 * LOG2E)))) * static.soft_cap
    if MASKED:
        visible = is_key[None, :] & (key[None, :] <= position[:, None])
        if static.left is not None:
            visible &= key[None, :] >= position[:, None] - static.left
        x = tl.where(visible, x, float("-inf"))

    new_maximum = tl.maximum(maximum, tl.max(x, 1))
    shift = new_maximum
    if MASKED:
        shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = tl.exp2(x - shift[:, None])
    correction = tl.exp2(maximum - shift)
    total = total * correction + tl.sum(weights, 1)
    acc *= correction[:, None]
    if static.kv_scale == "token":
        weights *= scales
        # The largest becomes one: scales may be too small for float16.
        highest = tl.max(weights, 1)
        highest = tl.where(highest > 0, highest, 1.0)[:, None]
        acc += tl.dot((weights / highest).to(q_tile.dtype), latents, input_precision=static.precision) * highest
    else:
        acc = tl.dot(weights.to(q_tile.dtype), latents, acc, input_precision=static.precision)
    return acc, total, new_maximum


@triton.jit
def _unpacked(rows, is_key, dtype: tl.constexpr, static: tl.constexpr):
    """The latents of tokens that are bytes: codes of float8, and then a float32 scale for each 128 of them."""
    BLOCKS: tl.constexpr = (static.block_v + 127) // 128
    cols = tl.arange(0, static.block_v)[None, :]
    blocks = tl.arange(0, BLOCKS)[None, :]
    codes = tl.load(rows + cols, mask=is_key[:, None] & (cols < static.v_head_dim), other=0)
    codes = wide(codes.to(tl.float8e4nv, bitcast=True), tl.float16, static.ptx, True).to(tl.float32)
    scales = (rows + static.v_head_dim).to(tl.pointer_type(tl.float32)) + blocks
    scales = tl.load(scales, mask=is_key[:, None] & (blocks < static.v_head_dim // 128), other=0.0)
    values = tl.reshape(codes, [static.block_k, BLOCKS, static.block_v // BLOCKS]) * scales[:, :, None]
    return tl.reshape(values, [static.block_k, static.block_v]).to(dtype)
