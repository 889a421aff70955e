"""``Static``: the compile-time constants of a Triton kernel, lengths, strides, flags and tile sizes in one value.

Lengths and strides are compile-time constants on purpose: Triton proves 16-byte alignment of the loads from them and
can then copy asynchronously. With run-time strides the same forward has no ``cp.async`` at all and 255 registers
instead of 145 (sm_90, 128x64x128).
"""

import math
from dataclasses import dataclass
from typing import Protocol

from attn_tune.kernels.lang.attention import Attention

LOG2E = math.log2(math.e)

# Heads are worked on together if the arrays that programs walk, one of each for a head, fill at most this much, so that
# their tiles are found in the L2 cache by all programs of the section. A third of an H200's 50 MB; smaller caches only
# hit less often.
SECTION_BYTES = 16 * 2**20

# Triton's one-pass "tf32" cuts its operands off instead of rounding them: on an H200 its gradients are off by more than
# twice what XLA's default makes. Three passes are the cheapest product of float32 operands that passes validation.
_INPUT_PRECISION = {"default": "tf32x3", "high": "tf32x3", "highest": "ieee"}

# Finding the tiles that share a segment takes 5 us on an H200 (three programs of XLA's): half of the forward of 16x44
# tokens. Where there are no more elements and tiles of the walked side, and tiles of all programs, all are walked.
_FEW_WALKED, _FEW_STEPS, _FEW_TILES = 256, 4, 2048


class Blocks(Protocol):
    """The sizes of a tile that its launch is compiled with."""

    @property
    def block_q(self) -> int: ...
    @property
    def block_k(self) -> int: ...
    @property
    def owns_keys(self) -> bool: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Static:
    """Compile-time constants of one launch, derived ones too: Triton's cache is keyed by this value's text.

    Attributes:
      group_size: query heads per key/value head.
      offset: position of query row 0.
      q_blocks, kv_blocks: tiles along the query and along the keys.
      ragged_q, ragged_k: the last tile of rows, of keys, is not full; with lengths that of keys may not be.
      block_h, block_v: head dims padded to a power of two of at least 16.
      left, right: window bounds with causal folded in (``Problem.bounds``).
      skips_left, skips_right: keys beyond that bound can be skipped by their number.
      has_lengths: the lengths of the keys are given; nothing beyond them is read.
      has_ranges: the launch has the ranges of tiles that share a segment (``ranges.py``); the others are skipped, and
        segments are not compared where all are the same.
      wide_pairs: offsets into one head's [T, S] bias or mask do not fit 32 bits.
      heads_per_section: batch-heads worked on together, a divisor of their number.
      unit: turns a natural logit into what the kernel computes with: a base-2 logit or, with a soft cap, a share of it.
      dot_scale: multiplies q.k into that unit.
      late_scale: what is left to multiply after the maximum was taken. The plain path scales inside
        ``exp2(x * late_scale - m)``, one fused multiply-add an element; every other path has 1.
      keep_threshold: dropout keeps a weight whose 32 random bits reach it; None without dropout.
      bias_strides, mask_strides: elements per step in b, n, t, s; 0 where the array broadcasts.
    """

    q_len: int
    kv_len: int
    num_q_heads: int
    num_kv_heads: int
    group_size: int
    offset: int
    head_dim: int
    v_head_dim: int
    block_h: int
    block_v: int
    block_q: int
    block_k: int
    q_blocks: int
    kv_blocks: int
    ragged_q: bool
    ragged_k: bool
    left: int | None
    right: int | None
    skips_left: bool
    skips_right: bool
    has_segments: bool
    has_lengths: bool
    has_ranges: bool
    has_positions: bool
    heads_per_section: int
    scale: float
    unit: float
    dot_scale: float
    late_scale: float
    soft_cap: float | None
    logits_dtype: str
    precision: str
    keep_threshold: int | None
    keep_scale: float
    bias_strides: tuple[int, ...] | None
    mask_strides: tuple[int, ...] | None
    wide_pairs: bool


def static_of(problem: Attention, tile: Blocks, *, ranges: bool = False) -> Static:
    """The constants of a launch of ``problem`` with this tile; ``ranges``: it takes those of the segments, if any."""
    left, right = problem.bounds
    plain = (
        problem.soft_cap is None
        and problem.bias_dims is None
        and problem.logits_dtype == "float32"
        and problem.scale > 0
    )
    unit = LOG2E if problem.soft_cap is None else 1.0 / problem.soft_cap
    keep = problem.dropout_rate > 0
    return Static(
        q_len=problem.q_len,
        kv_len=problem.kv_len,
        num_q_heads=problem.num_q_heads,
        num_kv_heads=problem.num_kv_heads,
        group_size=problem.group_size,
        offset=problem.offset,
        head_dim=problem.head_dim,
        v_head_dim=problem.v_head_dim,
        block_h=padded(problem.head_dim),
        block_v=padded(problem.v_head_dim),
        block_q=tile.block_q,
        block_k=tile.block_k,
        q_blocks=-(-problem.q_len // tile.block_q),
        kv_blocks=-(-problem.kv_len // tile.block_k),
        ragged_q=problem.q_len % tile.block_q != 0,
        ragged_k=problem.has_lengths or problem.kv_len % tile.block_k != 0,
        left=left,
        right=right,
        skips_left=left is not None and not problem.has_positions,
        skips_right=right is not None and not problem.has_positions,
        has_segments=problem.has_segments,
        has_lengths=problem.has_lengths,
        has_ranges=ranges and problem.has_segments,
        has_positions=problem.has_positions,
        heads_per_section=_heads_per_section(problem, tile.owns_keys),
        scale=problem.scale,
        unit=unit,
        dot_scale=1.0 if plain else problem.scale * unit,
        late_scale=problem.scale * unit if plain else 1.0,
        soft_cap=problem.soft_cap,
        logits_dtype=problem.logits_dtype,
        precision=_INPUT_PRECISION[problem.precision],
        keep_threshold=_keep_threshold(problem.dropout_rate) if keep else None,
        keep_scale=1.0 / (1.0 - problem.dropout_rate),
        bias_strides=_broadcast_strides(problem, problem.bias_dims),
        mask_strides=_broadcast_strides(problem, problem.mask_dims),
        wide_pairs=problem.q_len * problem.kv_len >= 2**31,
    )


def padded(head_dim: int) -> int:
    """The power of two, at least 16, that holds ``head_dim``."""
    return max(16, 1 << (head_dim - 1).bit_length())


def _keep_threshold(rate: float) -> int:
    return min(round(rate * 2**32), 2**32 - 1)


def _broadcast_strides(problem: Attention, dims: str | None) -> tuple[int, ...] | None:
    if dims is None:
        return None
    sizes = (problem.batch, problem.num_q_heads, problem.q_len, problem.kv_len)
    strides, step = [], 1
    for letter, size in reversed(list(zip(dims, sizes, strict=True))):
        strides.append(0 if letter == "1" else step)
        step *= 1 if letter == "1" else size
    return tuple(reversed(strides))


def skips_segments(problem: Attention, rows: int, keys: int, *, of_keys: bool = False) -> bool:
    """Whether a launch of `triton` finds the tiles that share a segment, to skip the others.

    Args:
      rows, keys: of a tile.
      of_keys: a program owns keys and walks the rows.
    """
    if problem.has_lengths:
        # Nothing beyond them may be read.
        return True
    of_rows, of_columns = -(-problem.q_len // rows), -(-problem.kv_len // keys)
    length, steps = (problem.q_len, of_rows) if of_keys else (problem.kv_len, of_columns)
    tiles = problem.batch * problem.num_q_heads * of_rows * of_columns
    return length > _FEW_WALKED or steps > _FEW_STEPS or tiles > _FEW_TILES


def _heads_per_section(problem: Attention, per_kv_head: bool) -> int:
    """Batch-heads per section, by the bytes of the arrays they walk: a divisor of their number, whole groups."""
    size = 4 if problem.dtype == "float32" else 2
    width = (problem.head_dim + problem.v_head_dim) * size
    if per_kv_head:
        # The query heads of a group are walked one after the other, by programs of like length about together: the rows
        # of one are counted. With those of all, sections were so small that long and short programs ran side by side.
        heads = problem.batch * problem.num_kv_heads
        bytes_per_head = problem.q_len * width
        step = 1
    else:
        heads = problem.batch * problem.num_q_heads
        bytes_per_head = problem.kv_len * width / problem.group_size
        step = problem.group_size
    most = min(heads, max(step, int(SECTION_BYTES // max(1, bytes_per_head))))
    return max(d for d in range(step, most + 1, step) if heads % d == 0)
