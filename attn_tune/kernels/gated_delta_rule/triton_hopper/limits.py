"""Configs that cannot fit."""

from attn_tune.kernels.gated_delta_rule.triton_hopper.config import BackwardConfig, Config
from attn_tune.kernels.lang.gluon.chunks import CHUNK, COLUMNS, NUMBERS_BYTES, PART, SET_ASIDE
from attn_tune.kernels.lang.gluon.chunks.limits import too_many_columns, too_many_programs, too_many_slots
from attn_tune.ops.gated_delta_rule.problem import Problem
from attn_tune.schema.device import Device


def infeasible(problem: Problem, device: Device, config: Config) -> str | None:
    """The reason that a config cannot run on the device, or None. Never refuses what compiles and fits."""
    columns = COLUMNS * config.groups
    if reason := too_many_columns(problem, config.groups):
        return reason
    if config.segments > 1 and problem.head_dim % columns:
        return f"h={problem.head_dim} is no multiple of {columns}, which segments with {config.groups} groups need"
    # Keys and queries, both squares, and values.
    stage = 2 * CHUNK * (2 * problem.head_dim + 2 * CHUNK + columns) + NUMBERS_BYTES
    outputs = 2 * 2 * CHUNK * columns
    return too_many_programs(problem, config.groups, config.segments) or too_many_slots(
        device, config.num_stages * stage + outputs + SET_ASIDE
    )


def infeasible_backward(problem: Problem, device: Device, config: BackwardConfig) -> str | None:
    """The reason that a backward's config cannot run on the device, or None. Never refuses what compiles and fits."""
    h, square = problem.head_dim, 2 * CHUNK * CHUNK
    # Keys and queries, the inverse in two parts, mixed products, and values; then a state and two tiles on their way.
    walked = config.num_stages * (4 * CHUNK * h + 4 * square + NUMBERS_BYTES) + 2 * CHUNK * h + 2 * square
    # Parts of both states, and of five tiles; then queries and keys, float32 gradients of both, squares and numbers.
    part = 2 * PART * (2 * h + 5 * CHUNK)
    differentiated = config.gradient_stages * part + 12 * CHUNK * h + 2 * square + 2 * NUMBERS_BYTES
    return too_many_slots(device, max(walked, differentiated) + SET_ASIDE)
