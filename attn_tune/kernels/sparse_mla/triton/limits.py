"""Problems and devices that the kernel does not support, and configs that cannot fit."""

from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import refuses_device, shared_limit
from attn_tune.kernels.sparse_mla.triton.config import Config
from attn_tune.ops.sparse_mla.problem import Problem
from attn_tune.schema.device import Device

MAX_LATENT, MAX_BESIDE = 512, 128
# Accumulators and one tile of logits, in float32 registers a thread, of 255 there are; some are spilled at the edges.
_MOST_ACCUMULATORS = 288
# Devices whose instructions read operands from shared memory, and the rows that these take at least.
_HOPPER, _BLACKWELL, _ROWS = 90, (100, 103), 64
_SMALLEST = Config(block_n=16, block_k=16, num_warps=4, num_stages=2)
# Barriers, and what else Triton adds.
_SET_ASIDE = 1024


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
    if shared_bytes(problem, device, _SMALLEST) > shared_limit(device):
        return f"no tile of {problem.dtype} keys of h={problem.head_dim} fits the shared memory of {device.family}"
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
    """Whether an untuned choice of this config, of two stages or more, certainly runs."""
    needed = shared_bytes(problem, device, config)
    return needed <= shared_limit(device) and infeasible(problem, device, config) is None


def shared_bytes(problem: Problem, device: Device, config: Config) -> int:
    """Most bytes of shared memory of a launch of two stages or more; Triton 3.6 and 3.9 need as many, or less.

    Instructions of one warp read queries from registers, and one tile of keys waits while the next is copied. Those of
    Hopper read both from shared memory, and for those of Blackwell Triton 3.6 copies keys more than once. Products of
    float32 hold queries twice.
    """
    is_wide = problem.dtype == "float32"
    queries = config.block_n * key_bytes(problem) * (2 if is_wide else 1)
    keys = config.block_k * key_bytes(problem)
    weights = config.block_n * config.block_k * (4 if is_wide else 2)
    if config.block_n < _ROWS or device.compute_capability not in (_HOPPER, *_BLACKWELL):
        return queries + keys + weights + _SET_ASIDE
    copies = 4 if device.compute_capability in _BLACKWELL else 2 if problem.head_dim > problem.v_head_dim else 3
    return queries + copies * keys + (weights if is_wide else 0) + _SET_ASIDE


def key_bytes(problem: Problem) -> int:
    """Bytes of a key in its tile: the latent and the rotary part, each padded."""
    rest = problem.head_dim - problem.v_head_dim
    return (padded(problem.v_head_dim) + (padded(rest) if rest else 0)) * (4 if problem.dtype == "float32" else 2)
