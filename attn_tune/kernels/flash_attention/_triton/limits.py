"""Problems and devices that the Triton kernels do not support, and tiles that cannot fit."""

from attn_tune.kernels.flash_attention._triton.config import ForwardConfig
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import has_tensor_memory, refuses_device, refuses_float32, shared_limit
from attn_tune.kernels.lang.triton.tiles import Tile
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

MAX_HEAD_DIM = 256
# Rows from which on Hopper and Blackwell multiply tiles in shared memory.
_TALL = 64

# Accumulators and one tile of logits, in float32 registers a thread. There are 255; a few more are spilled once at a
# loop's edge (128x128 at 4 warps and H128: 256, 72 bytes spilled), a third more at every step (64x128 dk/dv at 4
# warps: 320, 848 bytes, less than half the speed).
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
    needed, limit = shared_bytes(problem, device, tile), shared_limit(device)
    if needed > limit:
        return f"its tiles need at least {needed} bytes of shared memory; {device.family} has {limit}"
    floats = accumulators(problem, tile)
    if floats > MOST_ACCUMULATORS and not has_tensor_memory(device):
        return f"its accumulators need {floats} registers a thread; there are 255"
    return None


def fits(problem: Problem, device: Device, tile: Tile) -> bool:
    """Whether an untuned choice of this tile certainly runs."""
    enough = shared_bytes_at_most(problem, device, tile) <= shared_limit(device)
    return enough and infeasible(problem, device, tile) is None


def shared_bytes(problem: Problem, device: Device, tile: Tile) -> int:
    """A lower bound of the shared memory of one block.

    Tiles that stay (q, and dout in dq; k and v in dk/dv) plus one set of walked tiles per stage. Checked against
    Triton 3.9 for sm_80, sm_90 and sm_100: equal on sm_90 with ``wgmma`` up to 1 KB of row vectors. ``mma.sync`` can
    keep the resting tiles in registers and has one stage less in flight, so that only those walked tiles are counted.
    """
    size, owned, walked, resting, streamed = _tile_bytes(problem, tile)
    length = problem.q_len if tile.owns_keys else problem.kv_len
    # A loop too short to fill its stages may be unrolled, and then keeps nothing in flight; nor do rows that do not
    # start at multiples of 4 bytes, the least that can be copied asynchronously.
    long_enough = length > (tile.num_stages + 1) * walked
    aligned = problem.head_dim * size % 4 == 0 and problem.v_head_dim * size % 4 == 0
    stages = tile.num_stages if long_enough and aligned else 1
    one = max(padded(problem.head_dim), padded(problem.v_head_dim)) * size * walked
    if _uses_wgmma(problem, device, owned, tile.num_warps):
        return resting + (stages * streamed if stages > 1 else one)
    return max(one, (stages - 1) * streamed)


def shared_bytes_at_most(problem: Problem, device: Device, tile: Tile) -> int:
    """An upper estimate of the same, for untuned choices, which must fit.

    Without ``wgmma`` the weights, and in dk/dv their gradient too, pass through shared memory on their way from one
    product to the next; a dense bias or mask is copied ahead like keys and values.
    """
    size, owned, walked, resting, streamed = _tile_bytes(problem, tile)
    wgmma = _uses_wgmma(problem, device, owned, tile.num_warps)
    ahead = size * (problem.bias_dims is not None) + (problem.mask_dims is not None)
    in_flight = max(2, tile.num_stages)
    is_tall = owned >= _TALL
    if size == 4 and not (is_tall and has_tensor_memory(device)):
        # Products of float32 hold the tiles that stay twice, and weights too.
        in_flight -= not (is_tall and device.compute_capability == 90)
        return 2 * resting + in_flight * streamed + owned * walked * (2 * size + in_flight * ahead) + 1024
    if not wgmma and not has_tensor_memory(device) and size == 2:
        in_flight -= 1
    staged = 0 if wgmma else size * (2 if tile.owns_keys else 1)
    pairs = owned * walked * (staged + in_flight * ahead)
    return resting + in_flight * streamed + pairs + 1024


def accumulators(problem: Problem, tile: Tile) -> int:
    """Float32 registers a thread for the accumulators and one tile of logits."""
    h, v = padded(problem.head_dim), padded(problem.v_head_dim)
    width = h + v if tile.owns_keys else v if isinstance(tile, ForwardConfig) else h
    owned = tile.owned * width
    return (owned + tile.block_q * tile.block_k) // (32 * tile.num_warps)


def _tile_bytes(problem: Problem, tile: Tile) -> tuple[int, int, int, int, int]:
    """Bytes an element, owned and walked block, bytes of the tiles that stay and of one set of those that pass."""
    size = 4 if problem.dtype == "float32" else 2
    h, v = padded(problem.head_dim) * size, padded(problem.v_head_dim) * size
    if tile.owns_keys:
        return size, tile.block_k, tile.block_q, tile.block_k * (h + v), tile.block_q * (h + v)
    width = h if isinstance(tile, ForwardConfig) else h + v
    return size, tile.block_q, tile.block_k, tile.block_q * width, tile.block_k * (h + v)


def _uses_wgmma(problem: Problem, device: Device, owned: int, num_warps: int) -> bool:
    return device.compute_capability == 90 and problem.dtype != "float32" and owned >= _TALL and num_warps % 4 == 0
