"""Problems and devices that the kernel does not support, and configs that cannot fit."""

from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import refuses_device, shared_limit
from attn_tune.kernels.sparse_mla.triton.config import Config
from attn_tune.ops.sparse_mla.problem import Problem
from attn_tune.schema.device import Device

MAX_LATENT, MAX_BESIDE = 512, 128
# Accumulators and one tile of logits, in float32 registers a thread, of 255 there are; some are spilled at the edges.
_MOST_ACCUMULATORS = 288


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device at all, or None."""
    if reason := refuses_device(device):
        return reason
    for name, width, most in (
        ("v", problem.v_head_dim, MAX_LATENT),
        ("h", problem.head_dim, problem.v_head_dim + MAX_BESIDE),
    ):
        if width > most:
            return f"{name}={width} is above {most}: a tile does not fit registers and shared memory"
    return None


def infeasible(problem: Problem, device: Device, config: Config) -> str | None:
    """The reason that a config cannot fit the device, or None. Never refuses what compiles and fits."""
    needed, limit = (config.num_stages - 1) * key_bytes(problem) * config.block_k, shared_limit(device)
    if needed > limit:
        return f"its keys need at least {needed} bytes of shared memory; {device.family} has {limit}"
    floats = config.block_n * (padded(problem.v_head_dim) + config.block_k) // (32 * config.num_warps)
    if floats > _MOST_ACCUMULATORS:
        return f"its accumulators need {floats} registers a thread; there are 255"
    return None


def fits(problem: Problem, device: Device, config: Config) -> bool:
    """Whether an untuned choice of this config certainly runs."""
    row = key_bytes(problem)
    # Queries stay in shared memory, and weights pass through it.
    needed = config.block_n * (row + 4 * config.block_k) + max(2, config.num_stages) * row * config.block_k + 4096
    return needed <= shared_limit(device) and infeasible(problem, device, config) is None


def key_bytes(problem: Problem) -> int:
    """Bytes of a key in its tile: the latent and the rotary part, each padded."""
    rest = problem.head_dim - problem.v_head_dim
    return (padded(problem.v_head_dim) + (padded(rest) if rest else 0)) * (4 if problem.dtype == "float32" else 2)
