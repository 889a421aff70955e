"""The compile-time plan of a launch, beside the constants that all Triton kernels share. Importing it loads no jax."""

from dataclasses import dataclass

from attn_tune.kernels.lang.attention import Problem
from attn_tune.kernels.lang.gluon.attention.config import BLOCK_Q, CONSUMERS, ForwardConfig
from attn_tune.kernels.lang.triton.device.static import LOG2E, Static

# What one block may use on every device of sm_90, and what is set aside of it for barriers and tile info.
_SHARED_BYTES, _SET_ASIDE = 232448, 512
# Head dim: with 128 the queries take 32 registers that there are none of.
_WIDEST_IN_REGISTERS = 64


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The shape of a launch.

    Attributes:
      batch: sequences.
      stages: tiles of keys, and of values, in shared memory.
      num_programs: programs of the launch.
      num_tiles: tiles of query rows of all heads and sequences.
      dynamic: each program takes the next tile of a queue when it is done with one, instead of those of a schedule.
      schedule_width: elements of one program's row of the schedule, 0 without.
      heads_per_section: as in the config.
      ping_pong: the two groups of warps start their products in turns.
      own_buffer: the output has shared memory of its own, so that the next queries come while it leaves.
      overlap: a tile's first logits are computed beside the last product of the tile before.
      q_in_registers: queries go to registers at once, and leave their room to those of the next tile.
      q_slots: tiles of queries in shared memory, two to overlap.
      has_sinks: sinks are given.
      last_keys: whether "all", "none" or "some" of the last tiles of keys, one a tile of rows, cross an edge of what
        positions leave; segments are asked of each tile apart.
      other_keys: "none" or "some" of the others. One loop with a branch: two loops, for keys with an edge and without,
        keep the weights in different registers, and were 1.6 times as slow.
      has_lengths: keys count up to their lengths, which are given.
      fast_tanh: the soft cap goes through the hardware's tanh.
      keeps_maximum: a row's maximum only moves when logits exceed it by far, and the output is corrected only then.
      late_scale: as in ``Static``, with a soft cap what turns its share of the cap into a base-2 logit.
    """

    batch: int
    stages: int
    num_programs: int
    num_tiles: int
    dynamic: bool
    schedule_width: int
    heads_per_section: int
    ping_pong: bool
    own_buffer: bool
    overlap: bool
    q_in_registers: bool
    q_slots: int
    has_sinks: bool
    last_keys: str
    other_keys: str
    has_lengths: bool
    fast_tanh: bool
    keeps_maximum: bool
    late_scale: float


def plan_of(problem: Problem, config: ForwardConfig, static: Static, schedule_width: int = 0) -> Plan:
    """The plan of one launch."""
    last_keys, other_keys = _edges(problem, static)
    return Plan(
        batch=problem.batch,
        stages=config.num_stages,
        num_programs=num_programs(problem, config),
        num_tiles=num_tiles(problem),
        dynamic=not schedule_width,
        schedule_width=schedule_width,
        heads_per_section=config.heads_per_section,
        ping_pong=config.ping_pong,
        own_buffer=has_own_buffer(problem, config),
        overlap=overlaps(problem, config),
        q_in_registers=q_in_registers(problem, config),
        q_slots=q_slots(problem, config),
        has_sinks=problem.has_sinks,
        last_keys=last_keys,
        other_keys=other_keys,
        has_lengths=problem.has_lengths,
        fast_tanh=config.fast_tanh,
        keeps_maximum=_keeps_maximum(problem),
        late_scale=static.late_scale if problem.soft_cap is None else problem.soft_cap * LOG2E,
    )


def _edges(problem: Problem, static: Static) -> tuple[str, str]:
    left, right = problem.bounds
    if left is not None:
        return "some", "some"
    if right is None:
        return ("all" if problem.has_lengths or static.ragged_k else "none"), "none"
    # Lengths take away from the end: again only the last tile is not whole.
    blocks = range(static.q_blocks)
    only_last = all(_ends_with_its_edge(problem, static, right, block) for block in blocks)
    return ("all", "none") if only_last else ("some", "some")


def _ends_with_its_edge(problem: Problem, static: Static, right: int, block: int) -> bool:
    """Whether all rows of a tile see all tiles of keys before the last one that some of them see."""
    first = block * BLOCK_Q + problem.offset
    last = min((block + 1) * BLOCK_Q, problem.q_len) - 1 + problem.offset
    seen_by_some = min(max(last + right + 1, 1), problem.kv_len)
    seen_by_all = min(max(first + right + 1, 0), problem.kv_len)
    return seen_by_all // static.block_k >= -(-seen_by_some // static.block_k) - 1


def _keeps_maximum(problem: Problem) -> bool:
    """Whether correcting the output is most of what the products wait for.

    At head dim 256 it is: 1.04 to 1.07 times as fast on an H200. At 128 with dropout or documents: 1.02, else 0.99 to
    1.02. At 64 asking costs more than it saves: 0.94 to 0.99. Not with a soft cap, whose inputs do not try it.
    """
    if problem.soft_cap is not None:
        return False
    more = problem.dropout_rate > 0 or has_documents(problem)
    return problem.head_dim > 128 or (problem.head_dim == 128 and more)


def num_tiles(problem: Problem) -> int:
    """Tiles of query rows of all heads and sequences."""
    return -(-problem.q_len // BLOCK_Q) * problem.batch * problem.num_q_heads


def num_programs(problem: Problem, config: ForwardConfig) -> int:
    """Programs of a launch: none has nothing to do."""
    return min(num_tiles(problem), config.num_programs)


def has_documents(problem: Problem) -> bool:
    """Whether segments are more than lengths, so that what a tile costs is only known at run time."""
    return problem.has_segments and not problem.has_lengths


def shared_bytes(problem: Problem, config: ForwardConfig) -> int:
    """Shared memory of one block: queries, in each stage keys and values, and where there is room for them the output
    and the next queries.
    """
    more = has_own_buffer(problem, config) + q_slots(problem, config) - 1
    return _needed(problem, config) + more * _rows_bytes(problem)


def has_own_buffer(problem: Problem, config: ForwardConfig) -> bool:
    """Whether there is room for the output beside the queries."""
    return _needed(problem, config) + _rows_bytes(problem) <= _SHARED_BYTES


def q_in_registers(problem: Problem, config: ForwardConfig) -> bool:
    """Whether there are registers for the queries, and room for the output: their own is free at once for the next."""
    return has_own_buffer(problem, config) and problem.head_dim <= _WIDEST_IN_REGISTERS


def overlaps(problem: Problem, config: ForwardConfig) -> bool:
    """Whether the next queries come before the last ones are done with."""
    return q_in_registers(problem, config) or q_slots(problem, config) > 1


def q_slots(problem: Problem, config: ForwardConfig) -> int:
    """Tiles of queries in shared memory."""
    if q_in_registers(problem, config):
        return 1
    return 1 + (_needed(problem, config) + 2 * _rows_bytes(problem) <= _SHARED_BYTES)


def _needed(problem: Problem, config: ForwardConfig) -> int:
    keys_and_values = 4 * config.block_k * problem.head_dim
    ids = 4 * CONSUMERS * config.block_k * has_documents(problem)
    return _rows_bytes(problem) + config.num_stages * keys_and_values + ids + _SET_ASIDE


def _rows_bytes(problem: Problem) -> int:
    """One tile of query rows in 16 bits."""
    return 2 * BLOCK_Q * problem.head_dim
