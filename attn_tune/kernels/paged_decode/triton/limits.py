"""Problems and devices that the kernel does not support, and tiles that cannot fit."""

from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import refuses_cache, refuses_device, shared_limit
from attn_tune.kernels.paged_decode.triton.config import Config
from attn_tune.ops.fields.cache import CODES
from attn_tune.ops.paged_decode.problem import Problem
from attn_tune.schema.device import Device

MAX_HEAD_DIM = 256
# Every program reads and adds the lengths of all sequences.
MOST_SEQUENCES = 8192
# Accumulators and one tile of logits, in float32 registers a thread, of 255 there are; some are spilled at the edges.
MOST_ACCUMULATORS = 288


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device at all, or None."""
    if reason := refuses_device(device) or refuses_cache(problem.cache_dtype, device):
        return reason
    for name, width in (("h", problem.head_dim), ("v", problem.v_head_dim)):
        if width > MAX_HEAD_DIM:
            return f"{name}={width} is above {MAX_HEAD_DIM}: an accumulator of one tile does not fit the registers"
    if problem.batch > MOST_SEQUENCES:
        return f"b={problem.batch} is above {MOST_SEQUENCES}: every program reads the lengths of all sequences"
    return None


def infeasible(problem: Problem, device: Device, config: Config) -> str | None:
    """The reason that a config cannot fit the device, or None. Never refuses what compiles and fits."""
    needed, limit = (config.num_stages - 1) * streamed_bytes(problem, config), shared_limit(device)
    if needed > limit:
        return f"its tiles need at least {needed} bytes of shared memory; {device.family} has {limit}"
    floats = config.block_q * (padded(problem.v_head_dim) + config.block_k) // (32 * config.num_warps)
    if floats > MOST_ACCUMULATORS:
        return f"its accumulators need {floats} registers a thread; there are 255"
    return None


def fits(problem: Problem, device: Device, config: Config) -> bool:
    """Whether an untuned choice of this tile certainly runs."""
    size = 4 if problem.dtype == "float32" else 2
    # Queries and weights pass through shared memory on their way to a product, and so do codes once they are wide.
    staged = config.block_q * (padded(problem.head_dim) + config.block_k) * size
    if problem.cache_dtype in CODES:
        staged += config.block_k * max(padded(problem.head_dim), padded(problem.v_head_dim)) * size
    most = max(2, config.num_stages) * streamed_bytes(problem, config) + staged + 4096
    return most <= shared_limit(device) and infeasible(problem, device, config) is None


def streamed_bytes(problem: Problem, config: Config) -> int:
    """Bytes of one block of keys and its values."""
    size = 1 if problem.cache_dtype in CODES else 4 if problem.cache_dtype == "float32" else 2
    return config.block_k * (padded(problem.head_dim) + padded(problem.v_head_dim)) * size
