"""Device code of tiles: the one that a program owns, the range of the other side that it sees, loads and stores.

Arrays of the query side (q, dout, out, dq) are ``[B, T, N, width]``, those of the key side ``[B, S, K, width]``; their
tiles are ``[block_q, padded]`` and ``[block_k, padded]``, where ``padded`` is the power of two that holds ``width``.

The order of the lines, here and in the launches, is that of the instructions, and decides the registers: with all four
pointers before the first load, dbias takes 118 of them instead of 112 (sm_90, 64x64, H128, Triton 3.6).
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def owned_tile(blocks: tl.constexpr, heads: tl.constexpr, REVERSED: tl.constexpr, static: tl.constexpr):
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
def query_head(base, batch, head, width: tl.constexpr, static: tl.constexpr):
    """Row 0 of one head of an array of the query side."""
    return head_pointer(base, batch, head, static.q_len, static.num_q_heads, width)


@triton.jit
def key_head(base, batch, kv_head, width: tl.constexpr, static: tl.constexpr):
    """Row 0 of one head of an array of the key side."""
    return head_pointer(base, batch, kv_head, static.kv_len, static.num_kv_heads, width)


@triton.jit
def key_length(lengths, batch, static: tl.constexpr):
    """The number of keys of a batch entry that count; without lengths any number, which is never used."""
    length = batch
    if static.has_lengths:
        length = tl.load(lengths + batch)
    return length


@triton.jit
def head_rows(base, batch, head, static: tl.constexpr):
    """Row 0 of one head of a BNT array."""
    return base + (batch * static.num_q_heads + head).to(tl.int64) * static.q_len


@triton.jit
def load_tile(
    base,
    start,
    stride: tl.constexpr,
    num_rows,
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
def load_queries(head, start, width: tl.constexpr, padded: tl.constexpr, static: tl.constexpr):
    """A tile of the query side from row ``start`` on; ``head`` as from ``query_head``."""
    return load_tile(
        head,
        start,
        static.num_q_heads * width,
        static.q_len,
        width,
        static.block_q,
        padded,
        static.ragged_q,
    )


@triton.jit
def load_keys(
    head,
    start,
    length,
    width: tl.constexpr,
    padded: tl.constexpr,
    RAGGED: tl.constexpr,
    static: tl.constexpr,
):
    """A tile of the key side from key ``start`` on, past the end too if ``RAGGED``; ``head`` as from ``key_head``.

    With lengths, keys from ``length`` on are zeros: a weight of zero would not hide what is not a number.
    """
    end = static.kv_len
    if static.has_lengths:
        end = length
    return load_tile(
        head,
        start,
        static.num_kv_heads * width,
        end,
        width,
        static.block_k,
        padded,
        RAGGED,
    )


@triton.jit
def store_queries(head, start, tile, width: tl.constexpr, padded: tl.constexpr, static: tl.constexpr):
    """The inverse of ``load_queries``."""
    store_tile(
        head,
        start,
        tile,
        static.num_q_heads * width,
        static.q_len,
        width,
        static.block_q,
        padded,
    )


@triton.jit
def store_keys(head, start, tile, width: tl.constexpr, padded: tl.constexpr, static: tl.constexpr):
    """The inverse of ``load_keys``."""
    store_tile(
        head,
        start,
        tile,
        static.num_kv_heads * width,
        static.kv_len,
        width,
        static.block_k,
        padded,
    )


@triton.jit
def load_lse(head, index, static: tl.constexpr):
    """Base-2 lse of these rows; plus infinity, which makes every weight 0, beyond the end and for fully masked rows."""
    lse = tl.load(head + index, mask=index < static.q_len, other=float("-inf"))
    return tl.where(lse == float("-inf"), float("inf"), lse * LOG2E)


@triton.jit
def load_delta(head, index, static: tl.constexpr):
    """Row sums of ``dout * out``; zero beyond the end."""
    return tl.load(head + index, mask=index < static.q_len, other=0.0)


@triton.jit
def key_range(first_row, static: tl.constexpr):
    """The range of keys of a tile of rows: ``(begin, full_begin, full_end, end)``.

    Every visible key is in ``[begin, end)``; keys in ``[full_begin, full_end)`` are visible to all rows of the tile as
    far as causal and window go. All but ``end`` are multiples of ``block_k``. ``span_of`` cuts it.
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
        full_end = tl.minimum(full_end, tl.maximum(first + static.right + 1, 0) // block_k * block_k)
    return begin, full_begin, full_end, end


@triton.jit
def row_range(first_column, static: tl.constexpr):
    """The range of rows of a tile of keys; as ``key_range``.

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


@triton.jit
def span_of(bounds, PART: tl.constexpr):
    """``(begin, end)`` of one of the three loops over a range: ``"full"``, or what is ``"before"`` or ``"after"``."""
    begin, full_begin, full_end, end = bounds
    if PART == "before":
        end = tl.minimum(full_begin, end)
    elif PART == "full":
        begin = full_begin
        end = full_end
    else:
        begin = tl.maximum(full_begin, full_end)
    return begin, end
