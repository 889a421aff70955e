"""The compile-time constants of the two launches."""

from dataclasses import dataclass

from attn_tune.kernels.lang.triton.device.static import LOG2E, padded
from attn_tune.kernels.paged_decode._triton.config import NARROW, Config
from attn_tune.ops.fields.cache import LATENT, SAME, sizes_of, steps
from attn_tune.ops.paged_decode.operands import Operands
from attn_tune.ops.paged_decode.problem import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Static:
    """Compile-time constants, derived ones too: Triton's cache is keyed by this value's text.

    Attributes:
      batch, block_b: the sequences, and the power of two that holds them.
      q_len, num_q_heads, num_kv_heads, group_size: as in the problem.
      rows, tiles: the rows of a group, and the tiles that hold them.
      head_dim, v_head_dim, block_h, block_v: widths, and the powers of two that hold them.
      is_latent: values are the first columns of keys.
      rest, block_r: the other columns of those keys, and the power of two that holds them; 0 is none.
      block_q, block_k: the tile.
      is_narrow: its rows are columns of the products.
      capacity: tokens that the cache holds of a sequence.
      page_size: tokens of a page; of a contiguous cache its capacity.
      table_width: pages of a sequence in the page table; 0 for a contiguous cache.
      one_page: no block of keys lies in more than one page.
      wide_slots: offsets of tokens into one page do not fit 32 bits.
      k_steps, v_steps: elements from one page, token and head to the next.
      v_offset: elements from a key to its value where both are one array.
      scale_steps: the same steps of the scales of tokens.
      kv_scale: which parts of the cache have a scale.
      has_codes: the cache holds codes.
      left: the window; None is all.
      dot_scale: multiplies q.k into a base-2 logit or, with a soft cap, into a share of it.
      soft_cap: of the logits, in base 2; None is none.
      precision: of the products.
      ptx: device code may use assembly.
      num_programs, least_blocks, cluster: as in the config.
    """

    batch: int
    block_b: int
    q_len: int
    num_q_heads: int
    num_kv_heads: int
    group_size: int
    rows: int
    tiles: int
    head_dim: int
    v_head_dim: int
    block_h: int
    block_v: int
    is_latent: bool
    rest: int
    block_r: int
    block_q: int
    block_k: int
    is_narrow: bool
    capacity: int
    page_size: int
    table_width: int
    one_page: bool
    wide_slots: bool
    k_steps: tuple[int, ...]
    v_steps: tuple[int, ...]
    v_offset: int
    scale_steps: tuple[int, ...]
    kv_scale: str
    has_codes: bool
    left: int | None
    dot_scale: float
    soft_cap: float | None
    precision: str
    ptx: bool
    num_programs: int | None
    least_blocks: int
    cluster: int | None


def static_of(problem: Problem, config: Config, operands: Operands, *, ptx: bool) -> Static:
    """The constants of a call; sizes of the cache are those of its arrays."""
    p = problem
    batch, q_len, num_q_heads, head_dim = operands.q.shape
    sizes = sizes_of(p.layout, operands.k.shape)
    pages, slots, heads = sizes["page"], sizes["slot"], sizes["head"]
    group = num_q_heads // heads
    k_steps = tuple(steps(p.layout, pages, slots, heads, head_dim))
    table_width = 0 if operands.page_table is None else operands.page_table.shape[1]
    is_latent, is_joint = p.layout == LATENT, operands.v is None
    v_head_dim = p.v_head_dim
    v_steps = k_steps if is_joint else tuple(steps(p.layout, pages, slots, heads, v_head_dim))
    rest = head_dim - v_head_dim if is_latent else 0
    # The scales of tokens have the cache's axes, those of an interleaved one keys and values apart.
    scale_layout = "nhd" if is_joint else p.layout
    return Static(
        batch=batch,
        block_b=padded(batch),
        q_len=q_len,
        num_q_heads=num_q_heads,
        num_kv_heads=heads,
        group_size=group,
        rows=q_len * group,
        tiles=-(-q_len * group // config.block_q),
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        block_h=padded(head_dim),
        block_v=padded(v_head_dim),
        is_latent=is_latent,
        rest=rest,
        block_r=padded(rest) if rest else 0,
        block_q=config.block_q,
        block_k=config.block_k,
        is_narrow=config.block_q == NARROW,
        capacity=slots * max(1, table_width),
        page_size=slots,
        table_width=table_width,
        one_page=table_width == 0 or slots % config.block_k == 0,
        wide_slots=slots * max(k_steps[1], v_steps[1]) >= 2**31,
        k_steps=k_steps,
        v_steps=v_steps,
        v_offset=head_dim if is_joint and not is_latent else 0,
        scale_steps=tuple(steps(scale_layout, pages, slots, heads, 1)),
        kv_scale=p.kv_scale,
        has_codes=p.kv_dtype != SAME,
        left=p.window,
        dot_scale=p.scale * (LOG2E if p.soft_cap is None else 1.0 / p.soft_cap),
        soft_cap=None if p.soft_cap is None else p.soft_cap * LOG2E,
        precision="tf32x3" if p.dtype == "float32" else "tf32",
        ptx=ptx,
        num_programs=config.num_programs,
        least_blocks=config.least_blocks,
        cluster=config.cluster,
    )
