"""The launch that combines the parts of sequences that were cut, weighed by their lse; it writes empty ones too."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import jax
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.tile import LN2, LOG2E
from attn_tune.kernels.paged_decode._triton.schedule import all_blocks, piece
from attn_tune.kernels.paged_decode._triton.static import Static

# Rows and parts of them that a program holds at once.
_HELD = 32
# Programs above which each takes more rows: three for each multiprocessor of a large GPU are waves enough.
_MANY = 1024


def combine(
    part_out: jax.Array,
    part_lse: jax.Array,
    kv_lens: jax.Array,
    sinks: jax.Array | None,
    out: jax.Array,
    lse: jax.Array,
    static: Static,
) -> tuple[jax.Array, ...]:
    """``out`` and ``lse`` with the rows of sequences that were cut, and of empty ones; the others are there already."""
    tiles = static.batch * static.num_kv_heads * static.tiles
    rows = 1
    while rows < min(static.block_q, _HELD) and tiles * -(-static.block_q // rows) > _MANY:
        rows *= 2
    return triton_call(
        combine_kernel,
        part_out,
        part_lse,
        kv_lens,
        sinks,
        out,
        lse,
        out_types=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (out, lse)],
        grid=(tiles * -(-min(static.rows, static.block_q) // rows), 1, 1),
        constexprs={"rows": rows, "parts": _HELD // rows, "static": static},
        num_warps=4,
        num_stages=1,
        name="paged_decode_combine",
        input_output_aliases={4: 0, 5: 1},
    )


@triton.jit
def combine_kernel(
    part_out,
    part_lse,
    kv_lens,
    sinks,
    out_before,
    lse_before,
    out,
    lse,
    rows: tl.constexpr,
    parts: tl.constexpr,
    static: tl.constexpr,
):
    """One program per sequence, key head and ``rows`` rows of a tile."""
    lanes: tl.constexpr = static.num_kv_heads * static.tiles
    most_rows: tl.constexpr = static.block_q if static.block_q < static.rows else static.rows
    groups: tl.constexpr = (most_rows + rows - 1) // rows
    group = tl.program_id(0) % groups
    lane = tl.program_id(0) // groups % lanes
    sequence = tl.program_id(0) // (groups * lanes)

    blocks = all_blocks(kv_lens, static)
    _, equal = piece(blocks, static)
    index = tl.arange(0, static.block_b)
    begin = tl.sum(tl.where(index < sequence, blocks, 0), 0)
    own = tl.sum(tl.where(index == sequence, blocks, 0), 0)
    first = begin // equal
    last = (begin + own - 1) // equal
    if (own == 0) | (last > first):
        held = tl.arange(0, parts * rows)
        row = group * rows + held % rows
        cols = tl.arange(0, static.block_v)[None, :]
        maximum = tl.full([rows], float("-inf"), tl.float32)
        weight = tl.full([rows], 0.0, tl.float32)
        acc = tl.full([rows, static.block_v], 0.0, tl.float32)
        if own > 0:
            for start in tl.range(first, last + 1, parts):
                program = start + held // rows
                part = 2 * program + (program == first).to(tl.int32)
                offsets = (part.to(tl.int64) * lanes + lane) * static.block_q + row
                is_part = (program <= last) & (row < static.block_q)
                log_sums = tl.load(part_lse + offsets, mask=is_part, other=float("-inf"))
                values = tl.load(
                    part_out + offsets[:, None] * static.v_head_dim + cols,
                    mask=is_part[:, None] & (cols < static.v_head_dim),
                    other=0.0,
                )
                log_sums = tl.reshape(log_sums, [parts, rows])
                values = tl.reshape(values, [parts, rows, static.block_v])
                new_maximum = tl.maximum(maximum, tl.max(log_sums, 0))
                shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
                shares = tl.exp2(log_sums - shift[None, :])
                correction = tl.exp2(maximum - shift)
                # A part that saw nothing was stored as zero.
                weight = weight * correction + tl.sum(shares, 0)
                acc = acc * correction[:, None] + tl.sum(values * shares[:, :, None], 0)
                maximum = new_maximum
        seen = weight > 0
        scale = tl.where(seen, 1.0 / tl.where(seen, weight, 1.0), 0.0)
        log_sum = tl.where(seen, maximum + tl.log2(tl.where(seen, weight, 1.0)), float("-inf"))

        tile_row = group * rows + tl.arange(0, rows)
        packed = lane % static.tiles * static.block_q + tile_row
        head = lane // static.tiles * static.group_size + packed % static.group_size
        is_row = (tile_row < static.block_q) & (packed < static.rows)
        if sinks is not None:
            sink = tl.load(sinks + head, mask=is_row, other=float("-inf")) * LOG2E
            log_sum = tl.where(own == 0, sink, log_sum)
        query = sequence.to(tl.int64) * static.q_len + packed // static.group_size
        target = query * static.num_q_heads + head
        tl.store(lse + target, log_sum * LN2, mask=is_row)
        inside = is_row[:, None] & (cols < static.v_head_dim)
        values = (acc * scale[:, None]).to(out.dtype.element_ty)
        tl.store(out + target[:, None] * static.v_head_dim + cols, values, mask=inside)
