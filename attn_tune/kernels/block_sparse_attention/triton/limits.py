"""Problems and devices that the Triton kernels do not support, and tiles that cannot fit."""

from attn_tune.kernels.block_sparse_attention.triton.config import DkvConfig, ForwardConfig
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import has_tensor_memory, refuses_device, refuses_float32, shared_limit
from attn_tune.kernels.lang.triton.tiles import Tile
from attn_tune.ops.block_sparse_attention.problem import Problem
from attn_tune.schema.device import Device

MAX_HEAD_DIM = 256
# Of one thread, for accumulators and one tile of logits: a few more than the 255 that there are spill at a loop's edge.
MOST_ACCUMULATORS = 288


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that these kernels cannot do the problem on this device at all, or None."""
    if reason := refuses_device(device):
        return reason
    for name, width in (("head_dim", problem.head_dim), ("v_head_dim", problem.v_head_dim)):
        if width > MAX_HEAD_DIM:
            return f"{name}={width} is above {MAX_HEAD_DIM}: an accumulator of one tile does not fit the registers"
    return refuses_float32(problem, device)


def infeasible(problem: Problem, device: Device, tile: Tile) -> str | None:
    """The reason that one launch cannot fit the device, or None. Never refuses what compiles and fits."""
    needed, limit = shared_bytes(problem, tile, at_least=True), shared_limit(device)
    if needed > limit:
        return f"its tiles need at least {needed} bytes of shared memory; {device.family} has {limit}"
    floats = accumulators(problem, tile)
    if floats > MOST_ACCUMULATORS and not has_tensor_memory(device):
        return f"its accumulators need {floats} registers a thread; there are 255"
    return None


def fits(problem: Problem, device: Device, tile: Tile) -> bool:
    """Whether an untuned choice of this tile certainly runs."""
    enough = shared_bytes(problem, tile) <= shared_limit(device)
    return enough and infeasible(problem, device, tile) is None


def accumulators(problem: Problem, tile: Tile) -> int:
    """Float32 registers a thread for the accumulators and one tile of logits."""
    h, v = padded(problem.head_dim), padded(problem.v_head_dim)
    width = h + v if isinstance(tile, DkvConfig) else v if isinstance(tile, ForwardConfig) else h
    return (tile.owned * width + tile.block_q * tile.block_k) // (32 * tile.num_warps)


def shared_bytes(problem: Problem, tile: Tile, *, at_least: bool = False) -> int:
    """Shared memory of one block: an upper estimate, or a lower bound.

    At most: the tiles that stay, those that pass once a stage, and a tile of weights (of dk and dv its gradient too) on
    its way from one product to the next. At least: one tile that passes, and those of one stage less where the rows
    can be copied asynchronously and the list is long enough to fill the stages.
    """
    size = 4 if problem.dtype == "float32" else 2
    h, v = padded(problem.head_dim) * size, padded(problem.v_head_dim) * size
    streamed, owned = tile.walked * (h + v), tile.owned * (h if isinstance(tile, ForwardConfig) else h + v)
    if at_least:
        length = problem.q_len if tile.owns_keys else problem.kv_len
        aligned = problem.head_dim * size % 4 == 0 and problem.v_head_dim * size % 4 == 0
        is_long = length > (tile.num_stages + 1) * tile.walked
        return max(tile.walked * max(h, v), (tile.num_stages - 1) * streamed if aligned and is_long else 0)
    weights = tile.owned * tile.walked * size * (2 if tile.owns_keys else 1)
    return owned + max(2, tile.num_stages) * streamed + weights + 1024
