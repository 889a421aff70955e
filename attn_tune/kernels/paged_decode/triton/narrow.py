"""Device code that walks keys for a tile of eight rows, which are columns here: logits ``[keys, rows]``.

Matrix instructions multiply 16 rows by 8 columns: tiles of keys and values are their wide operand, so that the rows of
a group, of which there are few, fill the narrow one. Half as many products, weights and accumulators are left than
where eight rows are padded to 16.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.device.tile import LOG2E
from attn_tune.kernels.paged_decode._triton.schedule import first_key
from attn_tune.kernels.paged_decode.triton.codes import wide, wide_part


@triton.jit
def walk_narrow(arrays, sequence, kv_head, first_row, length, offset, count, static: tl.constexpr):
    """The accumulator, denominator and maximum of a tile of rows over ``count`` blocks, from block ``offset`` on."""
    q, k, v, page_table, sinks, k_scale, v_scale = arrays
    row = first_row + tl.arange(0, static.block_q)
    cols_h = tl.arange(0, static.block_h)[None, :]
    head = kv_head * static.group_size + row % static.group_size
    query = row // static.group_size
    q_rows = ((sequence.to(tl.int64) * static.q_len + query) * static.num_q_heads + head)[:, None]
    is_row = (row < static.rows)[:, None]
    q_tile = tl.load(q + q_rows * static.head_dim + cols_h, mask=is_row & (cols_h < static.head_dim), other=0.0)

    # What multiplies a row of logits, and the output.
    row_scale = tl.full([static.block_q], static.dot_scale, tl.float32)
    out_scale = 1.0
    if static.kv_scale == "tensor":
        row_scale *= tl.load(k_scale)
        out_scale = tl.load(v_scale)
    if static.kv_scale == "head":
        row_scale *= tl.load(k_scale + kv_head)
        out_scale = tl.load(v_scale + kv_head)
    # Float16 holds every code exactly. Rows of bfloat16 queries become at most 2 before, by a power of two.
    if static.has_codes and q_tile.dtype == tl.bfloat16:
        largest = tl.max(tl.abs(q_tile.to(tl.float32)), 1)
        power = tl.exp2(tl.floor(tl.log2(tl.maximum(largest, 1e-30))))
        q_tile = (q_tile.to(tl.float32) / power[:, None]).to(tl.float16)
        row_scale *= power
    q_tile = tl.trans(q_tile)

    # Of codes the first columns of all pairs of values have one accumulator, and the second ones another.
    in_pairs: tl.constexpr = 2 if static.has_codes else 1
    maximum = tl.full([static.block_q], float("-inf"), tl.float32)
    # Each key's place in a block has a sum of its own until the end: warps need not meet for it.
    totals = tl.full([static.block_k, static.block_q], 0.0, tl.float32)
    acc = tl.full([static.block_v // in_pairs, static.block_q], 0.0, tl.float32)
    if static.has_codes:
        acc_second = tl.full([static.block_v // 2, static.block_q], 0.0, tl.float32)
    if sinks is not None:
        # The first part counts the sink; one of minus infinity adds nothing.
        sink = tl.load(sinks + head, mask=row < static.rows, other=float("-inf")) * LOG2E
        sink = tl.where(offset == 0, sink, float("-inf"))
        maximum = sink

    lowest = first_key(length, static)
    begin = (lowest // static.block_k + offset) * static.block_k
    position = (length - static.q_len + query)[None, :]
    k += kv_head.to(tl.int64) * static.k_steps[2]
    v += kv_head.to(tl.int64) * static.v_steps[2]
    v_dtype: tl.constexpr = v.dtype.element_ty
    if static.has_codes:
        v = v.to(tl.pointer_type(tl.int16), bitcast=True)
    cols_v = tl.arange(0, static.block_v // in_pairs)[:, None]
    is_value = cols_v < static.v_head_dim // in_pairs
    if static.kv_scale == "token":
        k_scale += kv_head.to(tl.int64) * static.scale_steps[2]
        v_scale += kv_head.to(tl.int64) * static.scale_steps[2]
    if static.table_width > 0:
        page_table += sequence.to(tl.int64) * static.table_width

    for start in tl.range(begin, begin + count * static.block_k, static.block_k):
        key = start + tl.arange(0, static.block_k)
        is_key = (key >= lowest) & (key < length)
        # The page and slot of the block's first key, or those of every key.
        if static.table_width == 0:
            page, slot = sequence, start
        elif static.one_page:
            page, slot = tl.load(page_table + start // static.page_size), start % static.page_size
        else:
            page = tl.load(page_table + key // static.page_size, mask=is_key, other=0)
            slot = key % static.page_size
        place = page.to(tl.int64), slot.to(tl.int64)
        k_tile = tl.load(
            _tokens(k, place, static.k_steps[0], static.k_steps[1], static)[:, None] + cols_h,
            mask=is_key[:, None] & (cols_h < static.head_dim),
            other=0.0,
        )
        k_tile = wide(k_tile, q_tile.dtype, static.ptx, False)
        x = tl.dot(k_tile, q_tile, input_precision=static.precision) * row_scale[None, :]
        if static.kv_scale == "token":
            scales = _tokens(k_scale, place, static.scale_steps[0], static.scale_steps[1], static)
            x *= tl.load(scales, mask=is_key, other=0.0)[:, None]
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
        totals = totals * correction[None, :] + weights
        maximum = new_maximum
        highest = tl.full([static.block_q], 1.0, tl.float32)
        if static.kv_scale == "token":
            scales = _tokens(v_scale, place, static.scale_steps[0], static.scale_steps[1], static)
            weights *= tl.load(scales, mask=is_key, other=0.0)[:, None]
            # The largest becomes one: scales may be too small for float16.
            highest = tl.max(weights, 0)
            highest = tl.where(highest > 0, highest, 1.0)
            weights /= highest[None, :]
        weights = weights.to(q_tile.dtype)
        # As columns from the start: Triton does not copy ahead what it turns later.
        tokens = _tokens(v, place, static.v_steps[0] // in_pairs, static.v_steps[1] // in_pairs, static)
        values = tl.load(tokens[None, :] + cols_v, mask=is_key[None, :] & is_value, other=0)
        if static.has_codes:
            acc = _add(acc, correction, wide_part(values, v_dtype, 0, static.ptx), weights, highest, static)
            second = wide_part(values, v_dtype, 1, static.ptx)
            acc_second = _add(acc_second, correction, second, weights, highest, static)
        else:
            acc = _add(acc, correction, values, weights, highest, static)
    total = tl.sum(totals, 0)
    if sinks is not None:
        total += tl.where(sink == float("-inf"), 0.0, tl.exp2(sink - maximum))
    acc = tl.trans(acc)
    if static.has_codes:
        acc = tl.reshape(tl.join(acc, tl.trans(acc_second)), [static.block_q, static.block_v])
    return acc * out_scale, total, maximum


@triton.jit
def _tokens(array, place, page_step: tl.constexpr, slot_step: tl.constexpr, static: tl.constexpr):
    """Pointers to the tokens of a block. Within a page they are constants away from the first one, and cost nothing."""
    array += place[0] * page_step + place[1] * slot_step
    return array + tl.arange(0, static.block_k).to(tl.int64) * slot_step if static.one_page else array


@triton.jit
def _add(acc, correction, values, weights, highest, static: tl.constexpr):
    """The accumulator ``[columns, rows]`` with one more block of values, whose weights are shares of the highest."""
    acc *= correction[None, :]
    if static.kv_scale == "token":
        acc += tl.dot(values, weights, input_precision=static.precision) * highest[None, :]
    else:
        acc = tl.dot(values, weights, acc, input_precision=static.precision)
    return acc
