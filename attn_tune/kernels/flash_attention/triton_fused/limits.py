"""Limits of the fused backward: those of dk and dv alone, with one tile of dq more."""

from attn_tune.kernels.flash_attention._triton import limits as shared
from attn_tune.kernels.flash_attention.triton_fused.config import BackwardConfig
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import has_tensor_memory, shared_limit
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

_SMALLEST = BackwardConfig(block_q=16, block_k=16, num_warps=4, num_stages=2, transposed_dq=False)


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device at all, or None."""
    if reason := shared.unsupported(problem, direction, device):
        return reason
    needed, limit = shared_bytes_at_most(problem, device, _SMALLEST), shared_limit(device)
    if needed > limit:
        return (
            f"{problem.dtype} at head_dim={problem.head_dim}: its smallest tile takes {needed} bytes of shared memory; "
            f"{device.family} has {limit}"
        )
    return None


def infeasible(problem: Problem, device: Device, config: BackwardConfig) -> str | None:
    """The reason that a config cannot fit the device, or None. Never refuses what compiles and fits."""
    if reason := shared.infeasible(problem, device, config):
        return reason
    floats = accumulators(problem, config)
    if floats > shared.MOST_ACCUMULATORS and not has_tensor_memory(device):
        return f"its accumulators need {floats} registers a thread; there are 255"
    return None


def accumulators(problem: Problem, config: BackwardConfig) -> int:
    """Float32 registers a thread for dk, dv, one tile of logits and one of dq.

    Not all live at once: a few more than the 255 there are compile well enough. 320 (32x128 at 4 warps and H128) spill
    1080 bytes.
    """
    share = config.block_q * padded(problem.head_dim) // (32 * config.num_warps)
    return shared.accumulators(problem, config) + share


def shared_bytes_at_most(problem: Problem, device: Device, config: BackwardConfig) -> int:
    """An upper estimate of shared memory, for untuned choices, which must fit.

    Beside what dk and dv need: the gradient of the logits, which both last products read there, and the tile of dq in
    float32 on its way to addresses side by side.
    """
    size = 4 if problem.dtype == "float32" else 2
    logits = config.block_q * config.block_k * size
    share = config.block_q * padded(problem.head_dim) * 4
    return shared.shared_bytes_at_most(problem, device, config) + logits + share


def fits(problem: Problem, device: Device, config: BackwardConfig) -> bool:
    """Whether an untuned choice of this config certainly runs."""
    enough = shared_bytes_at_most(problem, device, config) <= shared_limit(device)
    return enough and infeasible(problem, device, config) is None
