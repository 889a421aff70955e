"""What a launch knows beside the constants that all Triton kernels share; importing it loads neither jax nor triton."""

from dataclasses import dataclass

from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.flash_attention.triton.static import LOG2E, Static
from attn_tune.kernels.flash_attention.triton_hopper.config import BLOCK_Q, ForwardConfig

# What one block may use on every device of sm_90, and what is set aside of it for barriers and segment ids.
_SHARED_BYTES, _SET_ASIDE = 232448, 512


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The shape of a launch.

    Attributes:
      batch: sequences.
      stages: tiles of keys, and of values, in shared memory.
      schedule_width: elements of one program's row of the schedule.
      ping_pong: the two groups of warps start their products in turns.
      own_room: the output has shared memory of its own, so that the next queries come while it leaves.
      has_sinks: sinks are given.
      has_lengths: keys count up to their lengths, which are given.
      fast_tanh: the soft cap goes through the hardware's tanh.
      late_scale: as in ``Static``, with a soft cap what turns its share of the cap into a base-2 logit.
    """

    batch: int
    stages: int
    schedule_width: int
    ping_pong: bool
    own_room: bool
    has_sinks: bool
    has_lengths: bool
    fast_tanh: bool
    late_scale: float


def plan_of(problem: Problem, config: ForwardConfig, static: Static, schedule_width: int) -> Plan:
    """The plan of one launch."""
    return Plan(
        batch=problem.batch,
        stages=config.num_stages,
        schedule_width=schedule_width,
        ping_pong=config.ping_pong,
        own_room=has_own_room(problem, config),
        has_sinks=problem.has_sinks,
        has_lengths=problem.has_lengths,
        fast_tanh=config.fast_tanh,
        late_scale=static.late_scale if problem.soft_cap is None else problem.soft_cap * LOG2E,
    )


def shared_bytes(problem: Problem, config: ForwardConfig) -> int:
    """Shared memory of one block: queries, in each stage keys and values, and the output where it has its own room."""
    return _needed(problem, config) + has_own_room(problem, config) * _rows_bytes(problem)


def has_own_room(problem: Problem, config: ForwardConfig) -> bool:
    """Whether there is room for the output beside the next queries."""
    return _needed(problem, config) + _rows_bytes(problem) <= _SHARED_BYTES


def _needed(problem: Problem, config: ForwardConfig) -> int:
    keys_and_values = 4 * config.block_k * problem.head_dim
    return _rows_bytes(problem) + config.num_stages * keys_and_values + _SET_ASIDE


def _rows_bytes(problem: Problem) -> int:
    """One tile of query rows in 16 bits."""
    return 2 * BLOCK_Q * problem.head_dim
