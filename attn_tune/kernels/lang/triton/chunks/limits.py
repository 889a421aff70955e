"""Problems, devices and configs that walks over chunks of tokens cannot do, whatever the op."""

from attn_tune.kernels.lang.recurrent import Recurrent, refuses_gradients, rounds_states
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import (
    OLDEST_WITH_TENSOR_MEMORY,
    has_tensor_memory,
    refuses_assembler,
    refuses_device,
    refuses_tensor_memory,
    shared_limit,
)
from attn_tune.schema.device import Device

MAX_ROWS = 256
# Float32 accumulators that a thread holds at most. It has 255 registers; a few more are spilled.
MOST_HELD = 288


def unsupported(problem: Recurrent, direction: str, device: Device) -> str | None:
    """The reason that these kernels cannot do the problem on this device at all, or None."""
    if reason := refuses_device(device) or refuses_gradients(problem, direction) or rounds_states(problem, direction):
        return reason
    if problem.head_dim > MAX_ROWS:
        return f"h={problem.head_dim} is above {MAX_ROWS}: columns of the state are held in registers"
    if reason := refuses_tensor_memory(device, OLDEST_WITH_TENSOR_MEMORY):
        return reason
    # On an H200 gradients of such gates were wrong, and some kernels reached outside of their arrays.
    return refuses_assembler(device) if problem.gate == "channel" else None


def too_many_registers(device: Device, what: str, held: int) -> str | None:
    """The reason that a thread cannot hold so many accumulators, or None; ``what`` says whose they are."""
    if held <= MOST_HELD or has_tensor_memory(device):
        return None
    return f"{what} {held} registers a thread; there are 255"


def too_many_bytes(problem: Recurrent, device: Device, chunk: int, num_stages: int, tiles: int) -> str | None:
    """The reason that the keys of a walk do not fit shared memory, or None.

    Products read them there: ``tiles`` (keys, and of a forward queries) of each stage but the last.
    """
    size = 4 if problem.dtype == "float32" else 2
    stages = num_stages if problem.length > 4 * chunk else 1
    needed = max(1, stages - 1) * tiles * chunk * padded(problem.head_dim) * size
    if needed > (limit := shared_limit(device)):
        return f"its tiles need at least {needed} bytes of shared memory; {device.family} has {limit}"
    return None
