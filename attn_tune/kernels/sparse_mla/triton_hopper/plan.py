"""The compile-time constants of the launch. Importing it loads no jax."""

from dataclasses import dataclass

from attn_tune.kernels.lang.gluon.latents import GROUPS, KEYS, PANEL, ROWS
from attn_tune.kernels.lang.triton.device.static import LOG2E, padded
from attn_tune.kernels.sparse_mla.triton_hopper.config import Config
from attn_tune.ops.sparse_mla.problem import Problem

# Pieces of half of a tile's columns (H100, prompts of 4096 tokens of DeepSeek-V3.2: one 4.87 ms, two 4.72, four 4.78).
_PIECES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Compile-time constants: Triton's cache is keyed by this value's text.

    A key's columns are walked as ``width`` that both groups of warps share, and ``rest`` behind them; values are the
    first of ``width``.

    Attributes:
      q_len, kv_len, heads, selected: queries and keys of a sequence, query heads, indices of a query.
      head_dim, v_head_dim: the widths of keys and of latents.
      width: columns that are keys and values: the power of two, two panels at least, that holds the values.
      half: of these, the columns of the output that a group of warps has.
      rest: columns behind them, 0 or a panel.
      stages, splits, halves_ahead: as in the config.
      tiles: tiles of heads.
      share: tiles of keys of a program.
      scale: multiplies q.k into a base-2 logit.
      is_wide: offsets into the keys of a sequence do not fit 32 bits.
      pieces: of half of a tile's columns, each of which is awaited alone.
      is_gathered: threads copy keys.
    """

    q_len: int
    kv_len: int
    heads: int
    selected: int
    head_dim: int
    v_head_dim: int
    width: int
    half: int
    rest: int
    stages: int
    splits: int
    halves_ahead: int
    tiles: int
    share: int
    scale: float
    is_wide: bool
    pieces: int
    is_gathered: bool = True


def plan_of(problem: Problem, config: Config) -> Plan:
    """The constants of a call, whose sizes are the problem's."""
    p = problem
    width, rest = widths(p)
    key_tiles = -(-p.num_selected // KEYS)
    return Plan(
        q_len=p.q_len,
        kv_len=p.kv_len,
        heads=p.num_q_heads,
        selected=p.num_selected,
        head_dim=p.head_dim,
        v_head_dim=p.v_head_dim,
        width=width,
        half=width // GROUPS,
        rest=rest,
        stages=config.num_stages,
        halves_ahead=config.halves_ahead,
        pieces=min(_PIECES, width // GROUPS // PANEL),
        splits=config.splits,
        tiles=-(-p.num_q_heads // ROWS),
        share=-(-key_tiles // config.splits),
        scale=p.scale * LOG2E,
        is_wide=p.kv_len * p.head_dim >= 2**31,
    )


def widths(problem: Problem) -> tuple[int, int]:
    """Columns that are keys and values, and those behind them, in whole panels."""
    width = max(GROUPS * PANEL, padded(problem.v_head_dim))
    return width, -(-max(0, problem.head_dim - width) // PANEL) * PANEL
