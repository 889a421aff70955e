"""The compile-time constants of the launches, and where the chunks of a sequence are."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from dataclasses import dataclass

import triton
import triton.language as tl

from attn_tune.kernels.lang.recurrent import Recurrent
from attn_tune.kernels.lang.triton.chunks.config import Chunks
from attn_tune.kernels.lang.triton.device.static import padded


@dataclass(frozen=True, kw_only=True, slots=True)
class Static:
    """Compile-time constants, derived ones too: Triton's cache is keyed by this value's text.

    Attributes:
      batch: sequences.
      length: tokens of a sequence; of a ragged call those of all.
      heads, key_heads, group: value heads, query/key heads, and how many of the former share one of the latter.
      width, v_width: rows and columns of a state.
      block_h: the power of two that holds the rows.
      block_v, tiles: columns of a program, and programs that share the columns of a state.
      chunk: tokens of a chunk.
      slots: places for what is stored of each chunk; of a ragged call a few stay empty.
      parts: sequences; of a ragged call also the tokens before the first one and behind the last one.
      block_s: the power of two that holds one more than the sequences.
      ragged: sequences lie end to end, and an array says where each begins.
      whole: no chunk has fewer tokens, and both widths are powers of two.
      segments: parts of a sequence that are walked at one time.
      scale: multiplies the output.
      turned: walks hold states turned (``turned.py``).
      precision: of products of operands in the working dtype.
      is_wide: the working dtype is float32.
    """

    batch: int
    length: int
    heads: int
    key_heads: int
    group: int
    width: int
    v_width: int
    block_h: int
    block_v: int
    tiles: int
    chunk: int
    slots: int
    parts: int
    block_s: int
    ragged: bool
    whole: bool
    segments: int
    scale: float
    turned: bool
    precision: str
    is_wide: bool


def static_of(problem: Recurrent, config: Chunks, block_v: int, segments: int = 1, turned: bool = False) -> Static:
    """The constants of launches with this many columns of the state a program."""
    p = problem
    block_v = min(block_v, padded(p.v_head_dim))
    chunks = -(-p.length // config.chunk)
    is_wide = p.dtype == "float32"
    return Static(
        batch=p.batch,
        length=p.length,
        heads=p.num_value_heads,
        key_heads=p.num_key_heads,
        group=p.group_size,
        width=p.head_dim,
        v_width=p.v_head_dim,
        block_h=padded(p.head_dim),
        block_v=block_v,
        tiles=-(-p.v_head_dim // block_v),
        chunk=config.chunk,
        # A sequence that begins at token ``e`` has the places from ``e // chunk`` on, and one more for each before it.
        slots=chunks + p.batch + 2 if p.ragged else chunks * p.batch,
        parts=p.batch + 2 if p.ragged else p.batch,
        block_s=padded(p.batch + 1),
        ragged=p.ragged,
        whole=not p.ragged
        and p.length % config.chunk == 0
        and padded(p.head_dim) == p.head_dim
        and padded(p.v_head_dim) == p.v_head_dim,
        segments=segments,
        scale=p.scale,
        turned=turned,
        # Three passes: one pass of tf32 cuts its operands off.
        precision="tf32x3" if is_wide else "tf32",
        is_wide=is_wide,
    )


@triton.jit
def tokens_of(cu_seqlens, part, static: tl.constexpr):
    """The sequence of a part, -1 where it is none; its first token, the end of its tokens, and its first place."""
    if static.ragged:
        sequence = part - 1
        begin = tl.load(cu_seqlens + sequence, mask=part > 0, other=0)
        end = tl.load(cu_seqlens + part, mask=part <= static.batch, other=static.length)
        place = begin // static.chunk + part
        sequence = tl.where(part <= static.batch, sequence, -1)
    else:
        sequence = part
        begin = part * static.length
        end = begin + static.length
        place = part * ((static.length + static.chunk - 1) // static.chunk)
    return sequence, begin, end, place


@triton.jit
def chunk_of(cu_seqlens, slot, static: tl.constexpr):
    """The sequence of the chunk at a place, its first token, and the end of the sequence; no token if it is empty."""
    if static.ragged:
        index = tl.arange(0, static.block_s)
        starts = tl.load(cu_seqlens + index, mask=index <= static.batch, other=0)
        before = (index <= static.batch) & (starts // static.chunk + index + 1 <= slot)
        part = tl.sum(before.to(tl.int32), 0)
    else:
        part = slot // ((static.length + static.chunk - 1) // static.chunk)
    sequence, begin, end, place = tokens_of(cu_seqlens, part, static)
    return sequence, begin + (slot - place) * static.chunk, end


@triton.jit
def load_tokens(
    x, start, end, head, heads: tl.constexpr, width: tl.constexpr, cols, count: tl.constexpr, whole: tl.constexpr
):
    """Rows ``[count, cols]`` of one head from token ``start`` on; zero from ``end`` on and beyond the width.

    Args:
      whole: no row is at ``end`` or behind it, and no column beyond the width.
    """
    row = tl.arange(0, count)
    base = x + (start.to(tl.int64) * heads + head) * width
    offsets = row[:, None] * (heads * width) + cols[None, :]
    if whole:
        return tl.load(base + offsets)
    else:
        inside = (start + row < end)[:, None] & (cols < width)[None, :]
        return tl.load(base + offsets, mask=inside, other=0.0)


@triton.jit
def store_tokens(x, values, start, end, head, heads: tl.constexpr, width: tl.constexpr, cols, count: tl.constexpr):
    """Stores rows ``[count, cols]`` of one head from token ``start`` on, those before ``end``."""
    row = tl.arange(0, count)
    base = x + (start.to(tl.int64) * heads + head) * width
    offsets = row[:, None] * (heads * width) + cols[None, :]
    inside = (start + row < end)[:, None] & (cols < width)[None, :]
    tl.store(base + offsets, values.to(x.dtype.element_ty), mask=inside)


@triton.jit
def load_numbers(x, start, end, head, heads: tl.constexpr, count: tl.constexpr, other: tl.constexpr):
    """Numbers ``[count]`` of one head from token ``start`` on; ``other`` from ``end`` on."""
    row = tl.arange(0, count)
    base = x + start.to(tl.int64) * heads + head
    return tl.load(base + row * heads, mask=start + row < end, other=other)


@triton.jit
def load_lower(x, place, chunk: tl.constexpr):
    """The matrix of a chunk; nothing is read above the diagonal blocks, where it is zero."""
    row = tl.arange(0, chunk)[:, None]
    col = tl.arange(0, chunk)[None, :]
    base = x + place.to(tl.int64) * (chunk * chunk)
    return tl.load(base + row * chunk + col, mask=row // 16 >= col // 16, other=0.0)
