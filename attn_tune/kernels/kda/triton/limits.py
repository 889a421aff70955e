"""Configs that cannot fit a device."""

from attn_tune.kernels.kda.triton.config import ChannelChunks, ForwardConfig
from attn_tune.kernels.lang.recurrent import Recurrent
from attn_tune.kernels.lang.triton.chunks.limits import too_many_bytes, too_many_registers
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.schema.device import Device


def infeasible(problem: Recurrent, device: Device, config: ChannelChunks) -> str | None:
    """The reason that a config cannot fit the device, or None. Never refuses what compiles and fits."""
    # The state and the update of a chunk.
    columns = min(config.block_v, padded(problem.v_head_dim))
    held = (padded(problem.head_dim) + config.chunk) * columns // (32 * config.num_warps)
    reason = too_many_registers(device, "its state needs", held)
    tiles = 2 if isinstance(config, ForwardConfig) else 1
    return reason or too_many_bytes(problem, device, config.chunk, config.num_stages, tiles)
