"""Problems and devices that the kernel does not support, and configs that cannot fit."""

from attn_tune.kernels.gated_delta_rule.triton.config import ForwardConfig
from attn_tune.kernels.lang.triton.chunks.config import Chunks
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import has_tensor_memory, refuses_device, shared_limit
from attn_tune.ops.gated_delta_rule.problem import Problem
from attn_tune.schema.device import Device

MAX_ROWS = 256
# The state and the update of a chunk, in float32 registers a thread. There are 255; a few more are spilled.
MOST_HELD = 288
# Roundings of fewer rows or columns even out so little that gradients of gates are not right in 16 bits.
_NARROW = 32


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device at all, or None."""
    if reason := refuses_device(device):
        return reason
    if problem.head_dim > MAX_ROWS:
        return f"h={problem.head_dim} is above {MAX_ROWS}: columns of the state are held in registers"
    return None


def is_narrow(problem: Problem) -> bool:
    """Whether the backward computes in float32 whatever the dtype."""
    return min(problem.head_dim, problem.v_head_dim) < _NARROW


def infeasible(problem: Problem, device: Device, config: Chunks) -> str | None:
    """The reason that a config cannot fit the device, or None. Never refuses what compiles and fits."""
    size, rows = 4 if problem.dtype == "float32" else 2, padded(problem.head_dim)
    block_v = min(getattr(config, "block_v", 16), padded(problem.v_head_dim))
    warps = getattr(config, "num_warps", 4)
    held = (rows + config.chunk) * block_v // (32 * warps)
    if held > MOST_HELD and not has_tensor_memory(device):
        return f"its state needs {held} registers a thread; there are 255"
    # Keys and queries of each stage but the last, which products read from shared memory.
    stages = getattr(config, "num_stages", 1) if problem.length > 4 * config.chunk else 1
    tiles = 2 if isinstance(config, ForwardConfig) else 1
    needed = max(1, stages - 1) * tiles * config.chunk * rows * size
    if needed > (limit := shared_limit(device)):
        return f"its tiles need at least {needed} bytes of shared memory; {device.family} has {limit}"
    return None
