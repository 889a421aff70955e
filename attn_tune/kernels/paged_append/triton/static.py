"""The compile-time constants of the launch."""

from dataclasses import dataclass

from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.paged_append.triton.config import Config
from attn_tune.ops.fields.cache import CODES, LARGEST_CODE, SMALLEST, sizes_of, steps
from attn_tune.ops.paged_append.operands import Operands
from attn_tune.ops.paged_append.problem import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Static:
    """Compile-time constants, derived ones too: Triton's cache is keyed by this value's text.

    Attributes:
      batch: the sequences.
      new: the new tokens of each sequence; 0 where an array says.
      rows: keys of one token and head.
      num_kv_heads, head_dim, v_head_dim, kv_scale: as in the problem.
      block_rows: as in the config.
      block_h, block_v: the powers of two that hold the widths.
      pages, page_size, capacity: pages of the cache, tokens of one, and tokens that the cache holds of a sequence.
      table_width: pages of a sequence in the page table; 0 for a contiguous cache.
      k_steps, v_steps, scale_steps: elements from one page, token and head to the next.
      v_offset: elements from a key to its value where both are one array; 0 where they are apart.
      largest, smallest: the largest code, or None for a cache without codes, and the least largest element of a scale.
      is_int8: codes are whole numbers.
    """

    batch: int
    new: int
    rows: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    kv_scale: str
    block_rows: int
    block_h: int
    block_v: int
    pages: int
    page_size: int
    capacity: int
    table_width: int
    k_steps: tuple[int, ...]
    v_steps: tuple[int, ...]
    scale_steps: tuple[int, ...]
    v_offset: int
    largest: float | None
    smallest: float
    is_int8: bool


def static_of(problem: Problem, config: Config, operands: Operands) -> Static:
    """The constants of a call; all sizes are those of its arrays."""
    o, layout = operands, problem.layout
    sizes = sizes_of(layout, o.k.shape)
    cache = (sizes["page"], sizes["slot"], sizes["head"])
    head_dim, v_head_dim = o.new_k.shape[-1], o.new_v.shape[-1]
    table_width = 0 if o.page_table is None else o.page_table.shape[1]
    # Scales of tokens have the cache's axes, those of an interleaved one keys and values apart.
    scale_layout = "nhd" if o.v is None else layout
    return Static(
        batch=o.kv_lens.shape[0],
        new=0 if o.cu_q_lens is not None else o.new_k.shape[1],
        rows=o.new_k.size // head_dim,
        num_kv_heads=sizes["head"],
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        kv_scale=problem.kv_scale,
        block_rows=config.block_rows,
        block_h=padded(head_dim),
        block_v=padded(v_head_dim),
        pages=sizes["page"],
        page_size=sizes["slot"],
        capacity=sizes["slot"] * max(1, table_width),
        table_width=table_width,
        k_steps=tuple(steps(layout, *cache, head_dim)),
        v_steps=tuple(steps(layout, *cache, v_head_dim)),
        scale_steps=tuple(steps(scale_layout, *cache, 1)),
        v_offset=head_dim if o.v is None else 0,
        largest=LARGEST_CODE[problem.cache_dtype] if problem.cache_dtype in CODES else None,
        smallest=SMALLEST,
        is_int8=problem.cache_dtype == "int8",
    )
