"""Configs that cannot fit."""

from attn_tune.kernels.lang.gluon.chunks import CHUNK, COLUMNS, NUMBERS_BYTES, SET_ASIDE
from attn_tune.kernels.lang.gluon.chunks.limits import too_many_columns, too_many_programs, too_many_slots
from attn_tune.kernels.linear_attention.triton_hopper.config import Config
from attn_tune.ops.linear_attention.problem import Problem
from attn_tune.schema.device import Device


def infeasible(problem: Problem, device: Device, config: Config) -> str | None:
    """The reason that a config cannot run on the device, or None. Never refuses what compiles and fits."""
    columns = COLUMNS * config.groups
    stage = 2 * CHUNK * (2 * problem.head_dim + columns) + (0 if problem.gate == "none" else NUMBERS_BYTES)
    # Of each group two slots of outputs, and its weights.
    own = 2 * CHUNK * (2 * COLUMNS + CHUNK) * config.groups
    return (
        too_many_columns(problem, config.groups)
        or too_many_programs(problem, config.groups, config.segments)
        or too_many_slots(device, config.num_stages * stage + own + SET_ASIDE)
    )
