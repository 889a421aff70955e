"""The compile-time constants of the launch that walks. Importing it loads no jax."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attn_tune.kernels.lang.gluon.latents import GROUPS, KEYS, PANEL
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.paged_decode.triton_hopper.config import Config

if TYPE_CHECKING:
    from attn_tune.kernels.paged_decode._triton.static import Static


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The constants of copies and slots: Triton's cache is keyed by this value's text.

    A key's columns are walked as ``width`` that both groups of warps share, and ``rest`` behind them; values are the
    first of ``width``.

    Attributes:
      width: columns that are keys and values: the power of two, two panels at least, that holds the values.
      half: of these, the columns of the output that a group of warps has.
      rest: columns behind them, 0 or a panel.
      panels: panels of ``width``.
      chunk, chunks: keys that one copy brings, all of one page, and how many of these a tile has.
      stages, halves_ahead: as in the config.
      queries: rows of the array of queries.
      cache_rows, page_rows: rows of the cache, and of a page.
      is_gathered: threads copy keys.
      pieces: of half of a tile's columns, each of which is awaited alone.
    """

    width: int
    half: int
    rest: int
    panels: int
    chunk: int
    chunks: int
    stages: int
    halves_ahead: int
    queries: int
    cache_rows: int
    page_rows: int
    is_gathered: bool = False
    pieces: int = 1


def plan_of(static: "Static", config: Config, cache_rows: int) -> Plan:
    """The constants of a call whose cache has ``cache_rows`` rows."""
    width, rest = widths(static.head_dim, static.v_head_dim)
    chunk = chunk_of(static.page_size if static.table_width else 0)
    return Plan(
        width=width,
        half=width // GROUPS,
        rest=rest,
        panels=width // PANEL,
        chunk=chunk,
        chunks=KEYS // chunk,
        stages=config.num_stages,
        halves_ahead=config.halves_ahead,
        queries=static.batch * static.rows,
        cache_rows=cache_rows,
        page_rows=static.page_size,
    )


def widths(head_dim: int, v_head_dim: int) -> tuple[int, int]:
    """Columns that are keys and values, and those behind them, in whole panels."""
    width = max(GROUPS * PANEL, padded(v_head_dim))
    return width, -(-max(0, head_dim - width) // PANEL) * PANEL


def chunk_of(page_size: int) -> int:
    """Keys that one copy brings: a power of two that divides pages and tiles; a page of 0 is a contiguous cache."""
    return min(page_size & -page_size or KEYS, KEYS)
