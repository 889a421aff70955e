"""Device code that walks the keys of a sequence: packed rows of a group, an online softmax over blocks of a cache."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.device.tile import LN2, LOG2E
from attn_tune.kernels.paged_decode._triton.schedule import first_key
from attn_tune.kernels.paged_decode.triton.codes import wide


@triton.jit
def prefetch_pages(page_table, static: tl.constexpr):
    """Brings a cache line of the page table to the L2 cache, each program another, while the lengths are on their way.

    A program's pages are known only after the lengths, and its keys after its pages: three trips to memory in a row.
    """
    if static.ptx and static.table_width > 0:
        first = tl.program_id(0) * 32
        if first < static.batch * static.table_width:
            tl.inline_asm_elementwise(
                "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
                "=r,l",
                [page_table + first],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )


@triton.jit
def walk(arrays, sequence, kv_head, first_row, length, offset, count, static: tl.constexpr):
    """The accumulator, denominator and maximum of a tile of rows over ``count`` blocks, from block ``offset`` on."""
    q, k, v, page_table, sinks, k_scale, v_scale = arrays
    row = first_row + tl.arange(0, static.block_q)
    cols_h = tl.arange(0, static.block_h)[None, :]
    cols_v = tl.arange(0, static.block_v)[None, :]
    head = kv_head * static.group_size + row % static.group_size
    query = row // static.group_size
    q_rows = ((sequence.to(tl.int64) * static.q_len + query) * static.num_q_heads + head)[:, None]
    is_row = (row < static.rows)[:, None]
    q_tile = tl.load(q + q_rows * static.head_dim + cols_h, mask=is_row & (cols_h < static.head_dim), other=0.0)

    # What multiplies a row of logits, and the output.
    dot_scale = static.dot_scale
    out_scale = 1.0
    if static.kv_scale == "tensor":
        dot_scale = tl.load(k_scale) * static.dot_scale
        out_scale = tl.load(v_scale)
    if static.kv_scale == "head":
        dot_scale = tl.load(k_scale + kv_head) * static.dot_scale
        out_scale = tl.load(v_scale + kv_head)

    # Float16 holds every code exactly, and is the one conversion from float8 that the hardware has. Rows of bfloat16
    # queries become at most 2 before they are float16, by a power of two.
    row_scale = dot_scale
    if static.has_codes and q_tile.dtype == tl.bfloat16:
        largest = tl.max(tl.abs(q_tile.to(tl.float32)), 1)
        power = tl.exp2(tl.floor(tl.log2(tl.maximum(largest, 1e-30))))[:, None]
        q_tile = (q_tile.to(tl.float32) / power).to(tl.float16)
        row_scale *= power

    maximum = tl.full([static.block_q], float("-inf"), tl.float32)
    total = tl.full([static.block_q], 0.0, tl.float32)
    acc = tl.full([static.block_q, static.block_v], 0.0, tl.float32)
    if sinks is not None:
        # The first part counts the sink; one of minus infinity adds nothing.
        sink = tl.load(sinks + head, mask=row < static.rows, other=float("-inf")) * LOG2E
        maximum = tl.where(offset == 0, sink, float("-inf"))
        total += tl.where(maximum == float("-inf"), 0.0, 1.0)

    lowest = first_key(length, static)
    begin = (lowest // static.block_k + offset) * static.block_k
    position = (length - static.q_len + query)[:, None]
    k += kv_head.to(tl.int64) * static.k_steps[2]
    v += kv_head.to(tl.int64) * static.v_steps[2]
    if static.kv_scale == "token":
        k_scale += kv_head.to(tl.int64) * static.scale_steps[2]
        v_scale += kv_head.to(tl.int64) * static.scale_steps[2]
    if static.table_width > 0:
        page_table += sequence.to(tl.int64) * static.table_width

    for start in tl.range(begin, begin + count * static.block_k, static.block_k):
        key = start + tl.arange(0, static.block_k)
        is_key = (key >= lowest) & (key < length)
        if static.table_width == 0:
            page = sequence
            slot = key.to(tl.int64) if static.wide_slots else key
        elif static.one_page:
            page = tl.load(page_table + start // static.page_size)
            slot = start % static.page_size + tl.arange(0, static.block_k)
        else:
            page = tl.load(page_table + key // static.page_size, mask=is_key, other=0)
            slot = key % static.page_size
        page = page.to(tl.int64)
        k_rows = (page * static.k_steps[0] + slot * static.k_steps[1])[:, None]
        k_tile = tl.load(k + k_rows + cols_h, mask=is_key[:, None] & (cols_h < static.head_dim), other=0.0)
        k_tile = wide(k_tile, q_tile.dtype, static.ptx, False)
        x = tl.dot(q_tile, tl.trans(k_tile), input_precision=static.precision) * row_scale
        if static.kv_scale == "token":
            scales = page * static.scale_steps[0] + slot * static.scale_steps[1]
            x *= tl.load(k_scale + scales, mask=is_key, other=0.0)[None, :]
        if static.soft_cap is not None:
            # tanh by exp2: exact limits at both ends, and libdevice is not needed. tanh.approx has 11 bits only.
            x = (1.0 - 2.0 / (1.0 + tl.exp2(x * (2.0 * LOG2E)))) * static.soft_cap
        visible = is_key[None, :] & (key[None, :] <= position)
        if static.left is not None:
            visible &= key[None, :] >= position - static.left
        x = tl.where(visible, x, float("-inf"))

        new_maximum = tl.maximum(maximum, tl.max(x, 1))
        shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(x - shift[:, None])
        correction = tl.exp2(maximum - shift)
        total = total * correction + tl.sum(weights, 1)
        maximum = new_maximum
        v_rows = (page * static.v_steps[0] + slot * static.v_steps[1])[:, None]
        v_tile = tl.load(v + v_rows + cols_v, mask=is_key[:, None] & (cols_v < static.v_head_dim), other=0.0)
        v_tile = wide(v_tile, q_tile.dtype, static.ptx, True)
        acc *= correction[:, None]
        if static.kv_scale == "token":
            weights *= tl.load(v_scale + scales, mask=is_key, other=0.0)[None, :]
            # The largest becomes one: scales may be too small for float16.
            highest = tl.max(weights, 1)
            highest = tl.where(highest > 0, highest, 1.0)[:, None]
            weights = (weights / highest).to(q_tile.dtype)
            acc += tl.dot(weights, v_tile, input_precision=static.precision) * highest
        else:
            acc = tl.dot(weights.to(q_tile.dtype), v_tile, acc, input_precision=static.precision)
    return acc * out_scale, total, maximum


@triton.jit
def normalised(state):
    """The output and the base-2 lse of rows; of those that see nothing zero and minus infinity, or their sink."""
    acc, total, maximum = state
    seen = total > 0
    scale = tl.where(seen, 1.0 / tl.where(seen, total, 1.0), 0.0)
    log_sum = tl.where(seen, maximum + tl.log2(tl.where(seen, total, 1.0)), float("-inf"))
    return acc * scale[:, None], log_sum


@triton.jit
def store_rows(out, lse, state, sequence, kv_head, row, static: tl.constexpr):
    """Stores the rows ``row`` of a sequence whose keys were all walked; those from ``static.rows`` on are none."""
    values, log_sum = normalised(state)
    cols = tl.arange(0, static.block_v)[None, :]
    query = sequence.to(tl.int64) * static.q_len + row // static.group_size
    rows = query * static.num_q_heads + kv_head * static.group_size + row % static.group_size
    is_row = row < static.rows
    tl.store(lse + rows, log_sum * LN2, mask=is_row)
    inside = is_row[:, None] & (cols < static.v_head_dim)
    tl.store(out + rows[:, None] * static.v_head_dim + cols, values.to(out.dtype.element_ty), mask=inside)


@triton.jit
def store_part(part_out, part_lse, state, part, first_row, static: tl.constexpr):
    """Stores a part's rows in float32 and its lse in base 2."""
    values, log_sum = normalised(state)
    index = tl.arange(0, static.block_q)
    cols = tl.arange(0, static.block_v)[None, :]
    rows = part.to(tl.int64) * static.block_q + index
    is_row = first_row + index < static.rows
    tl.store(part_lse + rows, log_sum, mask=is_row)
    inside = is_row[:, None] & (cols < static.v_head_dim)
    tl.store(part_out + rows[:, None] * static.v_head_dim + cols, values, mask=inside)
