"""Configs that cannot fit a device, and problems whose backward is in float32."""

from attn_tune.kernels.gated_delta_rule.triton.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.lang.triton.chunks.limits import too_many_bytes, too_many_registers
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.ops.gated_delta_rule.problem import Problem
from attn_tune.schema.device import Device

# Roundings of fewer rows or columns even out so little that gradients of gates are not right in 16 bits.
_NARROW = 32


def is_narrow(problem: Problem) -> bool:
    """Whether the backward computes in float32 whatever the dtype."""
    return min(problem.head_dim, problem.v_head_dim) < _NARROW


def infeasible(problem: Problem, device: Device, config: ForwardConfig | BackwardConfig) -> str | None:
    """The reason that a config cannot fit the device, or None. Never refuses what compiles and fits."""
    # The state and the update of a chunk.
    columns = min(config.block_v, padded(problem.v_head_dim))
    held = (padded(problem.head_dim) + config.chunk) * columns // (32 * config.num_warps)
    reason = too_many_registers(device, "its state needs", held)
    tiles = 2 if isinstance(config, ForwardConfig) else 1
    return reason or too_many_bytes(problem, device, config.chunk, config.num_stages, tiles)
