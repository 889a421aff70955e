"""Problems for which splitting the keys makes sense, and tiles that do not fit."""

from attn_tune.kernels.flash_attention._triton import limits
from attn_tune.kernels.flash_attention.costs import units
from attn_tune.kernels.flash_attention.triton_split.config import ForwardConfig
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

# Rows of a tile of an ordinary forward, the fewest that warpgroups multiply; and of one tile of packed rows at most.
_ROWS, _PACKED_ROWS = 64, 128
# Blocks of the ordinary forward that run side by side on one multiprocessor.
_SIDE_BY_SIDE = 2


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device, or has nothing to offer there; None if it may.

    Of use are splits, where tiles of one head's rows are too few to give every multiprocessor its two blocks; and
    packing, where one tile holds a whole group, which then reads keys and values once. Where neither is, this is the
    ordinary forward with a longer way to it.
    """
    if reason := limits.unsupported(problem, direction, device):
        return reason
    tiles = problem.batch * problem.num_q_heads * -(-problem.q_len // _ROWS)
    enough = _SIDE_BY_SIDE * units(device)
    packs = problem.group_size > 1 and packed_rows(problem) <= _PACKED_ROWS
    if tiles >= enough and not packs:
        return (
            f"nothing to gain from splitting the keys: {tiles} tiles of {_ROWS} rows keep all {units(device)} "
            f"multiprocessors busy, and {packed_rows(problem)} rows that share keys are "
            + ("one head's" if problem.group_size == 1 else f"more than one tile of {_PACKED_ROWS}")
        )
    return None


def infeasible(problem: Problem, device: Device, config: ForwardConfig) -> str | None:
    """The reason that a config cannot fit the device, or None. Never refuses what compiles and fits."""
    return limits.infeasible(problem, device, config)


def packed_rows(problem: Problem) -> int:
    """Rows that share keys: every query of every head of a group."""
    return problem.q_len * problem.group_size
