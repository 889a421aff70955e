"""The compile-time constants of a launch. Importing it loads no jax."""

from dataclasses import dataclass
from typing import Any

from attn_tune.kernels.lang.triton.device.static import LOG2E, padded
from attn_tune.kernels.ragged_paged.triton_hopper.config import ROWS, Config
from attn_tune.ops.fields.cache import SAME, axes, sizes_of, steps
from attn_tune.ops.ragged_paged.problem import Problem
from attn_tune.schema.errors import UnsupportedError

# What one block may use on every device of sm_90, and what is set aside of it for barriers and facts of tiles.
_SHARED_BYTES, _SET_ASIDE = 232448, 1024
# Bytes of a row of shared memory that the widest swizzle takes.
_PANEL_BYTES = 128
# Places in a copy by descriptor, and the sums that lead there, have 32 bits; a tile may begin behind the last row.
_MOST_ROWS = 2**31 - 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The constants of a launch, derived ones too: Triton's cache is keyed by this value's text.

    The cache is read as ``[cache_rows, cache_heads, width]``, whatever its layout: token ``slot`` of page ``page`` and
    key head ``head`` is ``[page * page_rows + slot + head * head_rows, head * head_step]``.

    Attributes:
      tokens, batch: queries, and sequences.
      num_q_heads, num_kv_heads, group_size: heads, and query heads that share a key head.
      group_rows: rows that a query has in a tile: the power of two that holds its heads.
      queries: queries of a tile.
      head_dim, v_head_dim, block_h, block_v: widths, and the powers of two that hold them.
      k_panel, k_panels, v_panel, v_panels: columns that one copy brings, and how many of these a head has.
      block_k: keys of a tile.
      chunk, chunks: keys that one copy brings, all of one page, and how many of these a tile has.
      stages: tiles of keys, and of values, in shared memory.
      consumers: groups of warps that multiply.
      q_slots: tiles of queries in shared memory.
      q_stride, out_stride: a slot of theirs in tiles of queries, and of outputs.
      num_programs: programs of the launch.
      heads_per_section: as in the config.
      ping_pong: as in the config.
      searches: halvings after which the sequence of a tile is found.
      capacity: tokens that the cache holds of a sequence.
      page_size: tokens of a page; of a contiguous cache its capacity.
      table_width: pages of a sequence in the page table; 0 for a contiguous cache.
      cache_rows, cache_heads, page_rows, head_rows, head_step: above.
      v_head: heads from a key to its value where both are one array.
      causal: a query sees no key behind its own position.
      left: the window; None is all.
      has_sinks: sinks are given.
      cap_scale: multiplies q.k into a share of the soft cap; None without.
      late_scale: multiplies what comes of that, or q.k, into a base-2 logit.
      has_codes, cell_bytes: the cache holds codes; bytes of one, or of a number.
      kv_scale: which parts of the cache have a scale.
      has_factors: queries and codes are multiplied in float16, and each row of queries has a factor.
      row_scale: in these; it multiplies q.k into a base-2 logit or, with a soft cap, into the exponent of its tanh.
      scale_pages, scale_slots, scale_heads: scales of tokens from one page, token of a page, and head to the next.
    """

    tokens: int
    batch: int
    num_q_heads: int
    num_kv_heads: int
    group_size: int
    group_rows: int
    queries: int
    head_dim: int
    v_head_dim: int
    block_h: int
    block_v: int
    k_panel: int
    k_panels: int
    v_panel: int
    v_panels: int
    block_k: int
    chunk: int
    chunks: int
    stages: int
    consumers: int
    q_slots: int
    q_stride: int
    out_stride: int
    num_programs: int
    heads_per_section: int
    ping_pong: bool
    searches: int
    capacity: int
    page_size: int
    table_width: int
    cache_rows: int
    cache_heads: int
    page_rows: int
    head_rows: int
    head_step: int
    v_head: int
    causal: bool
    left: int | None
    has_sinks: bool
    cap_scale: float | None
    late_scale: float
    has_codes: bool
    cell_bytes: int
    kv_scale: str
    has_factors: bool
    row_scale: float
    scale_pages: int
    scale_slots: int
    scale_heads: int


def plan_of(problem: Problem, config: Config, operands: Any) -> Plan:
    """The constants of a call; sizes are those of its arrays.

    Args:
      operands: an ``Operands`` of arrays, or of their shapes.

    Raises:
      UnsupportedError: the cache has more rows than a copy by descriptor counts.
    """
    p, o = problem, operands
    tokens, num_q_heads, head_dim = o.q.shape
    sizes = sizes_of(p.layout, o.k.shape)
    pages, slots, heads = sizes["page"], sizes["slot"], sizes["head"]
    batch, group = o.kv_lens.shape[0], num_q_heads // heads
    v_head_dim = head_dim if o.v is None else o.v.shape[-1]
    step = steps(p.layout, pages, slots, heads, head_dim)
    # The scales of tokens have the cache's axes, those of an interleaved one keys and values apart.
    scale_step = steps("nhd" if o.v is None else p.layout, pages, slots, heads, 1)
    # Whether the heads of a token are neighbours.
    beside, kinds = axes(p.layout)[-1] == "head", 2 if o.v is None else 1
    queries = queries_of(group, config)
    table_width = 0 if o.page_table is None else o.page_table.shape[1]
    chunk = chunk_of(slots if table_width else 0, config.block_k)
    rows = pages * slots * (1 if beside else heads)
    if rows > _MOST_ROWS:
        raise UnsupportedError(
            f"the cache k={list(o.k.shape)} has {rows} rows; ragged_paged/triton_hopper counts {_MOST_ROWS}: "
            "choose platform='triton'"
        )
    block_h, block_v = padded(head_dim), padded(v_head_dim)
    k_panel, v_panel = (min(width, _PANEL_BYTES // 2) for width in (block_h, block_v))
    return Plan(
        tokens=tokens,
        batch=batch,
        num_q_heads=num_q_heads,
        num_kv_heads=heads,
        group_size=group,
        group_rows=group_rows(group),
        queries=queries,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        block_h=block_h,
        block_v=block_v,
        k_panel=k_panel,
        k_panels=block_h // k_panel,
        v_panel=v_panel,
        v_panels=block_v // v_panel,
        block_k=config.block_k,
        chunk=chunk,
        chunks=config.block_k // chunk,
        stages=config.num_stages,
        consumers=config.consumers,
        q_slots=q_slots(p, config),
        q_stride=max(block_h, block_v) // block_h,
        out_stride=max(block_h, block_v) // block_v,
        num_programs=min(config.num_programs, most_tiles(tokens, batch, queries) * heads),
        heads_per_section=config.heads_per_section,
        ping_pong=config.ping_pong,
        searches=batch.bit_length(),
        capacity=slots * max(1, table_width),
        page_size=slots,
        table_width=table_width,
        cache_rows=rows,
        cache_heads=heads * kinds if beside else 1,
        page_rows=step.page // step.slot,
        head_rows=0 if beside else step.head // step.slot,
        head_step=kinds if beside else 0,
        v_head=kinds - 1,
        causal=p.causal,
        left=p.window,
        has_sinks=o.sinks is not None,
        cap_scale=None if p.soft_cap is None else p.scale / p.soft_cap,
        late_scale=LOG2E * (p.scale if p.soft_cap is None else p.soft_cap),
        has_codes=p.kv_dtype != SAME,
        cell_bytes=2 if p.kv_dtype == SAME else 1,
        kv_scale=p.kv_scale,
        # Weights times scales of tokens need the range of bfloat16.
        has_factors=p.kv_dtype != SAME and p.kv_scale != "token",
        row_scale=LOG2E * p.scale * (1 if p.soft_cap is None else 2 / p.soft_cap),
        scale_pages=scale_step.page,
        scale_slots=scale_step.slot,
        scale_heads=scale_step.head,
    )


def queries_of(group_size: int, config: Config) -> int:
    """Queries of a tile."""
    return ROWS * config.consumers // group_rows(group_size)


def most_tiles(tokens: int, batch: int, queries: int) -> int:
    """Tiles that a key head has at most: each sequence has one that is not full."""
    return tokens // queries + batch


def chunk_of(page_size: int, block_k: int) -> int:
    """Keys that one copy brings: a power of two that divides pages and tiles; a page of 0 is a contiguous cache."""
    return min(page_size & -page_size or block_k, block_k)


def shared_bytes(problem: Problem, config: Config) -> int:
    """Shared memory of one block: queries, in each stage keys and values, and one tile of their codes."""
    return _needed(problem, config) + (q_slots(problem, config) - 1) * _rows_bytes(problem, config)


def q_slots(problem: Problem, config: Config) -> int:
    """Tiles of queries in shared memory: the next one's come early where there is room."""
    needed = _needed(problem, config) + _rows_bytes(problem, config)
    return 1 + (needed <= _SHARED_BYTES)


def _needed(problem: Problem, config: Config) -> int:
    columns = padded(problem.head_dim) + padded(problem.v_head_dim)
    # Bytes of a key and its value in every stage: two factors beside them where tokens have some.
    staged = 2 * columns + (8 if problem.kv_scale == "token" else 0)
    codes = 0 if problem.kv_dtype == SAME else columns
    tiles = config.block_k * (config.num_stages * staged + codes)
    # Three groups pass factors of rows from thread to thread at once.
    passed = 256 if codes and config.consumers > 2 else 0
    return _rows_bytes(problem, config) + tiles + _SET_ASIDE + passed


def _rows_bytes(problem: Problem, config: Config) -> int:
    """One tile of query rows in 16 bits, wide enough for their output too."""
    return 2 * config.block_q * max(padded(problem.head_dim), padded(problem.v_head_dim))


def group_rows(group_size: int) -> int:
    """Rows that a query has in a tile: the power of two that holds the heads that share a key head."""
    return 1 << (group_size - 1).bit_length()
