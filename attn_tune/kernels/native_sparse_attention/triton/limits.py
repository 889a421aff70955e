"""Problems and devices that the kernel does not support, and launches that cannot fit."""

from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import refuses_device, shared_limit
from attn_tune.kernels.native_sparse_attention.triton.config import DkvConfig, DqConfig, ForwardConfig
from attn_tune.ops.native_sparse_attention.problem import Problem
from attn_tune.schema.device import Device

type Launch = ForwardConfig | DqConfig | DkvConfig

MAX_HEAD_DIM, MAX_GROUP = 256, 128
# Accumulators and tiles of logits, in float32 registers a thread, of 255 there are; some are spilled at the edges.
_MOST_ACCUMULATORS = 288


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device at all, or None."""
    if reason := refuses_device(device):
        return reason
    for name, width, most in (
        ("h", problem.head_dim, MAX_HEAD_DIM),
        ("v", problem.v_head_dim, MAX_HEAD_DIM),
        ("the group's query heads", problem.group_size, MAX_GROUP),
    ):
        if width > most:
            return f"{name}={width} is above {most}: a tile does not fit registers and shared memory"
    return None


def infeasible(problem: Problem, device: Device, config: Launch) -> str | None:
    """The reason that one launch cannot fit the device, or None. Never refuses what compiles and fits."""
    if isinstance(config, DkvConfig) and config.block_k > problem.block_size:
        return f"block_k={config.block_k} is more than the {problem.block_size} keys of a block"
    needed, limit = (config.num_stages - 1) * _walked_bytes(problem, config), shared_limit(device)
    if needed > limit:
        return f"its tiles need at least {needed} bytes of shared memory; {device.family} has {limit}"
    floats = _accumulators(problem, config)
    if floats > _MOST_ACCUMULATORS:
        return f"its accumulators need {floats} registers a thread; there are 255"
    return None


def fits(problem: Problem, device: Device, config: Launch) -> bool:
    """Whether an untuned choice of this config certainly runs."""
    size = 4 if problem.dtype == "float32" else 2
    width = padded(problem.head_dim) + padded(problem.v_head_dim)
    rows = config.block_k if isinstance(config, DkvConfig) else padded(problem.group_size)
    walked = config.block_q if isinstance(config, DkvConfig) else config.block_k
    # What stays is in shared memory too, and weights and gradients of logits pass through it.
    needed = rows * (width * size + 2 * walked * size) + max(2, config.num_stages) * _walked_bytes(problem, config)
    return needed + 4096 <= shared_limit(device) and infeasible(problem, device, config) is None


def _walked_bytes(problem: Problem, config: Launch) -> int:
    rows = config.block_q if isinstance(config, DkvConfig) else config.block_k
    return rows * (padded(problem.head_dim) + padded(problem.v_head_dim)) * (4 if problem.dtype == "float32" else 2)


def _accumulators(problem: Problem, config: Launch) -> int:
    h, v = padded(problem.head_dim), padded(problem.v_head_dim)
    if isinstance(config, DkvConfig):
        floats = config.block_k * (h + v + config.block_q)
    else:
        floats = padded(problem.group_size) * ((v if isinstance(config, ForwardConfig) else h) + config.block_k)
    return floats // (32 * config.num_warps)
