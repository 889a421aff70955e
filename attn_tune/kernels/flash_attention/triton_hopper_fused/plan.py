"""The compile-time plan of a launch, beside the constants that all Triton kernels share. Importing it loads no jax."""

from dataclasses import dataclass

from attn_tune.kernels.flash_attention.triton_hopper_fused.config import CONSUMERS, ROWS, BackwardConfig
from attn_tune.kernels.lang.triton.device.static import LOG2E, Static
from attn_tune.ops.flash_attention.problem import Problem

# Tiles of the logits' gradient in shared memory. With two no group of warps waits until the other has read the last.
DS_SLOTS = 2
# Tiles of keys that a program has taken and not begun.
PLACE_SLOTS = 2
# Barriers and those tiles.
_SET_ASIDE = 1024


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The shape of a launch.

    Attributes:
      batch: sequences.
      num_programs: programs of the launch.
      num_tiles: tiles of keys of all key heads and sequences.
      stages, dout_stages: tiles of queries, and of the output's gradient, in shared memory.
      padded_q: rows of one head of lse and delta, whole tiles.
      shares_keys: both groups of warps have the same keys, each computes the logits of half of the rows, and makes half
        of the columns of all gradients; else each has keys of its own.
      key_tiles: tiles of 64 keys.
      row_tiles: tiles of rows whose logits a group of warps computes apart.
      rows: rows of one of these.
      width: columns of dk and dv that a group of warps makes.
      splits_rows: a group of warps makes dq of half of a tile's rows; else half of the columns of all its rows.
      dq_parts: parts, of 64 columns each, in which a group of warps makes its half of dq.
      staged_dq, ahead, late_dq, takes_late, fast_tanh: as in the config.
      has_lengths: keys count up to their lengths, which are given.
      place_numbers: what is published of a place in the queue: itself, and the bounds there if there are any. A power
        of two, as shared memory wants it.
      masks_end: some tile of keys has keys that are none, or do not count.
      masks_edge: some tile crosses the causal or window edge.
      late_scale: as in ``Static``, with a soft cap what turns its share of the cap into a base-2 logit.
    """

    batch: int
    num_programs: int
    num_tiles: int
    stages: int
    dout_stages: int
    padded_q: int
    shares_keys: bool
    key_tiles: int
    row_tiles: int
    rows: int
    width: int
    splits_rows: bool
    dq_parts: int
    staged_dq: bool
    ahead: bool
    late_dq: bool
    takes_late: bool
    fast_tanh: bool
    has_lengths: bool
    place_numbers: int
    masks_end: bool
    masks_edge: bool
    late_scale: float


def plan_of(problem: Problem, config: BackwardConfig, static: Static) -> Plan:
    """The plan of one launch."""
    return Plan(
        batch=problem.batch,
        num_programs=min(num_tiles(problem, config), config.num_programs),
        num_tiles=num_tiles(problem, config),
        stages=config.num_stages,
        dout_stages=config.dout_stages,
        padded_q=static.q_blocks * config.block_q,
        shares_keys=shares_keys(config),
        key_tiles=config.block_k // ROWS,
        row_tiles=CONSUMERS if shares_keys(config) else 1,
        rows=rows(config),
        width=width(problem, config),
        splits_rows=splits_rows(config),
        dq_parts=dq_columns(problem, config) // ROWS,
        staged_dq=config.staged_dq,
        ahead=config.ahead,
        late_dq=config.late_dq,
        takes_late=config.takes_late,
        fast_tanh=config.fast_tanh,
        has_lengths=problem.has_lengths,
        place_numbers=8 if problem.has_lengths or static.has_ranges else 1,
        masks_end=problem.has_lengths or static.ragged_k,
        masks_edge=problem.bounds != (None, None),
        late_scale=static.late_scale if problem.soft_cap is None else problem.soft_cap * LOG2E,
    )


def num_tiles(problem: Problem, config: BackwardConfig) -> int:
    """Tiles of keys of all key heads and sequences."""
    return -(-problem.kv_len // config.block_k) * problem.batch * problem.num_kv_heads


def shares_keys(config: BackwardConfig) -> bool:
    """Whether both groups of warps have the same keys."""
    return config.block_k == ROWS


def rows(config: BackwardConfig) -> int:
    """Rows whose logits a group of warps computes."""
    return config.block_q // CONSUMERS if shares_keys(config) else config.block_q


def width(problem: Problem, config: BackwardConfig) -> int:
    """Columns of dk and dv that a group of warps makes."""
    return problem.head_dim // CONSUMERS if shares_keys(config) else problem.head_dim


def splits_rows(config: BackwardConfig) -> bool:
    """Whether each group of warps makes dq of its own rows of a tile; a matrix instruction has 64."""
    return config.block_q == CONSUMERS * ROWS


def dq_columns(problem: Problem, config: BackwardConfig) -> int:
    """Columns of dq that a group of warps makes."""
    return problem.head_dim if splits_rows(config) else problem.head_dim // CONSUMERS


def shared_bytes(problem: Problem, config: BackwardConfig) -> int:
    """Shared memory of one block.

    Keys and values, in each stage queries or the output's gradient and a number a row, ids of the queries' rows, the
    gradient of the logits twice, and a part of dq of each group. Groups that share keys exchange weights too.
    """
    keys = 4 * config.block_k * problem.head_dim
    queries = (2 * problem.head_dim + 4) * config.block_q * (config.num_stages + config.dout_stages)
    if problem.has_segments and not problem.has_lengths:
        queries += 4 * config.block_q * config.num_stages
    logits = 2 * config.block_k * config.block_q * DS_SLOTS * (1 + shares_keys(config))
    shares = 4 * CONSUMERS * ROWS * ROWS if config.staged_dq else 0
    return keys + queries + logits + shares + _SET_ASIDE
