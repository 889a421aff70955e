"""Configs of linear attention in chunks that cannot fit."""

from attn_tune.kernels.lang.recurrent import Recurrent
from attn_tune.kernels.lang.triton.chunks.limits import too_many_bytes, too_many_registers
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.linear.config import BackwardConfig, ForwardConfig
from attn_tune.schema.device import Device


def infeasible(problem: Recurrent, device: Device, config: ForwardConfig | BackwardConfig) -> str | None:
    """The reason that a config cannot fit the device, or None. Never refuses what compiles and fits."""
    rows, chunk = padded(problem.head_dim), config.chunk
    is_forward = isinstance(config, ForwardConfig)
    # The state and, of the forward, the outputs of a chunk.
    columns = min(config.block_v, padded(problem.v_head_dim))
    held = (rows + is_forward * chunk) * columns // (32 * config.num_warps)
    reason = too_many_registers(device, "its state needs", held)
    if not is_forward and problem.gate != "channel":
        held = 2 * chunk * (rows + chunk) // (32 * config.gradient_warps)
        reason = reason or too_many_registers(device, "a chunk's gradients need", held)
    return reason or too_many_bytes(problem, device, chunk, config.num_stages, 1 + is_forward)
