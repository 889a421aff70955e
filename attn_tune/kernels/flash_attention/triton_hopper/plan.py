"""What a launch knows beside the constants that all Triton kernels share; importing it loads neither jax nor triton."""

from dataclasses import dataclass

from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.flash_attention.triton_hopper.config import ForwardConfig
from attn_tune.kernels.flash_attention.triton_hopper.limits import has_own_room


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
    """

    batch: int
    stages: int
    schedule_width: int
    ping_pong: bool
    own_room: bool
    has_sinks: bool


def plan_of(problem: Problem, config: ForwardConfig, schedule_width: int) -> Plan:
    """The plan of one launch."""
    return Plan(
        batch=problem.batch,
        stages=config.num_stages,
        schedule_width=schedule_width,
        ping_pong=config.ping_pong,
        own_room=has_own_room(problem, config),
        has_sinks=problem.has_sinks,
    )
