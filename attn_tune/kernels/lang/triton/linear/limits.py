"""Problems and devices that linear attention in chunks does not support, and configs that cannot fit."""

from attn_tune.kernels.lang.recurrent import Recurrent
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import has_tensor_memory, refuses_device, shared_limit
from attn_tune.kernels.lang.triton.linear.config import BackwardConfig, ForwardConfig
from attn_tune.schema.device import Device

MAX_ROWS = 256
# Float32 accumulators that a thread holds at most. It has 255 registers; a few more are spilled.
MOST_HELD = 288


def unsupported(problem: Recurrent, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device at all, or None."""
    if reason := refuses_device(device):
        return reason
    if problem.head_dim > MAX_ROWS:
        return f"h={problem.head_dim} is above {MAX_ROWS}: columns of the state are held in registers"
    return None


def infeasible(problem: Recurrent, device: Device, config: ForwardConfig | BackwardConfig) -> str | None:
    """The reason that a config cannot fit the device, or None. Never refuses what compiles and fits."""
    size, rows = 4 if problem.dtype == "float32" else 2, padded(problem.head_dim)
    block_v, chunk = min(config.block_v, padded(problem.v_head_dim)), config.chunk
    is_forward = isinstance(config, ForwardConfig)
    if not has_tensor_memory(device):
        # The state and, of the forward, the outputs of a chunk.
        held = (rows + is_forward * chunk) * block_v // (32 * config.num_warps)
        if held > MOST_HELD:
            return f"its state needs {held} registers a thread; there are 255"
        if not is_forward and problem.gate != "channel":
            held = 2 * chunk * (rows + chunk) // (32 * config.gradient_warps)
            if held > MOST_HELD:
                return f"a chunk's gradients need {held} registers a thread; there are 255"
    # Keys and, of the forward, queries of each stage but the last, which products read from shared memory.
    stages = config.num_stages if problem.length > 4 * chunk else 1
    needed = max(1, stages - 1) * (1 + is_forward) * chunk * rows * size
    if needed > (limit := shared_limit(device)):
        return f"its tiles need at least {needed} bytes of shared memory; {device.family} has {limit}"
    return None
