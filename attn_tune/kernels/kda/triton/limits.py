"""Configs that cannot fit a device."""

from attn_tune.kernels.kda.triton.config import ChannelChunks, ForwardConfig
from attn_tune.kernels.lang.recurrent import Recurrent
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import has_tensor_memory, shared_limit
from attn_tune.kernels.lang.triton.linear.limits import MOST_HELD
from attn_tune.schema.device import Device


def infeasible(problem: Recurrent, device: Device, config: ChannelChunks) -> str | None:
    """The reason that a config cannot fit the device, or None. Never refuses what compiles and fits."""
    size, rows = 4 if problem.dtype == "float32" else 2, padded(problem.head_dim)
    held = (rows + config.chunk) * min(config.block_v, padded(problem.v_head_dim)) // (32 * config.num_warps)
    if held > MOST_HELD and not has_tensor_memory(device):
        return f"its state needs {held} registers a thread; there are 255"
    # Keys and queries of each stage but the last, which products read from shared memory.
    stages = config.num_stages if problem.length > 4 * config.chunk else 1
    tiles = 2 if isinstance(config, ForwardConfig) else 1
    needed = max(1, stages - 1) * tiles * config.chunk * rows * size
    if needed > (limit := shared_limit(device)):
        return f"its tiles need at least {needed} bytes of shared memory; {device.family} has {limit}"
    return None
