"""Device code that walks latents: keys whose first columns are values, so that one tile of them serves both products.

Rows of queries are columns here, logits ``[keys, rows]`` and the accumulator ``[V, rows]``: tiles of keys are the wide
operand of both products, which Hopper's matrix instructions read from shared memory, and few heads waste nothing.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.device.tile import LOG2E
from attn_tune.kernels.paged_decode._triton.schedule import first_key
from attn_tune.kernels.paged_decode.triton.codes import wide
from attn_tune.kernels.paged_decode.triton.narrow import walk_narrow
from attn_tune.kernels.paged_decode.triton.walk import walk


@triton.jit
def walk_tile(arrays, sequence, kv_head, first_row, length, offset, count, static: tl.constexpr):
    """The accumulator, denominator and maximum of a tile of rows over ``count`` blocks, from block ``offset`` on."""
    if static.is_latent:
        state = walk_latents(arrays, sequence, first_row, length, offset, count, static)
    elif static.is_narrow:
        state = walk_narrow(arrays, sequence, kv_head, first_row, length, offset, count, static)
    else:
        state = walk(arrays, sequence, kv_head, first_row, length, offset, count, static)
    return state


@triton.jit
def walk_latents(arrays, sequence, first_row, length, offset, count, static: tl.constexpr):
    """The same of a cache of latents."""
    q, k, _, page_table, sinks, k_scale, _ = arrays
    row = first_row + tl.arange(0, static.block_q)
    cols = tl.arange(0, static.block_v)[None, :]
    head = row % static.num_q_heads
    query = row // static.num_q_heads
    is_row = row < static.rows
    q += ((sequence.to(tl.int64) * static.q_len + query) * static.num_q_heads + head)[:, None] * static.head_dim
    q_tile = tl.load(q + cols, mask=is_row[:, None] & (cols < static.v_head_dim), other=0.0)
    if static.rest > 0:
        rest_cols = static.v_head_dim + tl.arange(0, static.block_r)[None, :]
        is_rest = rest_cols < static.head_dim
        q_rest = tl.load(q + rest_cols, mask=is_row[:, None] & is_rest, other=0.0)

    # What multiplies a row of logits.
    row_scale = tl.full([static.block_q], static.dot_scale, tl.float32)
    if static.kv_scale == "tensor" or static.kv_scale == "head":
        row_scale *= tl.load(k_scale)
    # Float16 holds every code exactly, and is the one conversion from float8 that the hardware has. Rows of bfloat16
    # queries become at most 2 before they are float16, by a power of two.
    if static.has_codes and q_tile.dtype == tl.bfloat16:
        largest = tl.max(tl.abs(q_tile.to(tl.float32)), 1)
        if static.rest > 0:
            largest = tl.maximum(largest, tl.max(tl.abs(q_rest.to(tl.float32)), 1))
        power = tl.exp2(tl.floor(tl.log2(tl.maximum(largest, 1e-30))))
        q_tile = (q_tile.to(tl.float32) / power[:, None]).to(tl.float16)
        if static.rest > 0:
            q_rest = (q_rest.to(tl.float32) / power[:, None]).to(tl.float16)
        row_scale *= power

    maximum = tl.full([static.block_q], float("-inf"), tl.float32)
    total = tl.full([static.block_q], 0.0, tl.float32)
    acc = tl.full([static.block_v, static.block_q], 0.0, tl.float32)
    if sinks is not None:
        # The first part counts the sink; one of minus infinity adds nothing.
        sink = tl.load(sinks + head, mask=is_row, other=float("-inf")) * LOG2E
        maximum = tl.where(offset == 0, sink, float("-inf"))
        total += tl.where(maximum == float("-inf"), 0.0, 1.0)

    lowest = first_key(length, static)
    begin = (lowest // static.block_k + offset) * static.block_k
    position = (length - static.q_len + query)[None, :]
    if static.table_width > 0:
        page_table += sequence.to(tl.int64) * static.table_width

    for start in tl.range(begin, begin + count * static.block_k, static.block_k):
        key = start + tl.arange(0, static.block_k)
        is_key = (key >= lowest) & (key < length)
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
        rows = k + place * static.head_dim + (token * static.head_dim)[:, None]
        latents = tl.load(rows + cols, mask=is_key[:, None] & (cols < static.v_head_dim), other=0.0)
        latents = wide(latents, q_tile.dtype, static.ptx, True)
        x = tl.dot(latents, tl.trans(q_tile), input_precision=static.precision)
        if static.rest > 0:
            rest = tl.load(rows + rest_cols, mask=is_key[:, None] & is_rest, other=0.0)
            rest = wide(rest, q_tile.dtype, static.ptx, False)
            x = tl.dot(rest, tl.trans(q_rest), x, input_precision=static.precision)
        x *= row_scale[None, :]
        if static.kv_scale == "token":
            scales = tl.load(k_scale + place + token, mask=is_key, other=0.0)[:, None]
            x *= scales
        if static.soft_cap is not None:
            # tanh by exp2: exact limits at both ends, and libdevice is not needed. tanh.approx has 11 bits only.
            x = (1.0 - 2.0 / (1.0 + tl.exp2(x * (2.0 * LOG2E)))) * static.soft_cap
        visible = is_key[:, None] & (key[:, None] <= position)
        if static.left is not None:
            visible &= key[:, None] >= position - static.left
        x = tl.where(visible, x, float("-inf"))

        new_maximum = tl.maximum(maximum, tl.max(x, 0))
        shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(x - shift[None, :])
        correction = tl.exp2(maximum - shift)
        total = total * correction + tl.sum(weights, 0)
        maximum = new_maximum
        acc *= correction[None, :]
        values = tl.trans(latents)
        if static.kv_scale == "token":
            weights *= scales
            # The largest becomes one: scales may be too small for float16.
            highest = tl.max(weights, 0)
            highest = tl.where(highest > 0, highest, 1.0)[None, :]
            weights = (weights / highest).to(q_tile.dtype)
            acc += tl.dot(values, weights, input_precision=static.precision) * highest
        else:
            acc = tl.dot(values, weights.to(q_tile.dtype), acc, input_precision=static.precision)
    if static.kv_scale == "tensor" or static.kv_scale == "head":
        acc *= tl.load(k_scale)
    return tl.trans(acc), total, maximum
