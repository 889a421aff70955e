"""Problems and devices that the kernel does not support, and the configs worth trying."""

import itertools
from collections.abc import Iterator

from attn_tune.kernels.lang.space import nearest_first
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import refuses_device
from attn_tune.kernels.merge_attention.triton.config import Config
from attn_tune.ops.merge_attention.problem import Problem
from attn_tune.schema.device import Device

MAX_HEAD_DIM = 1024
# Multiprocessors of a device that does not say, and programs that each has in the untuned choice at least.
_UNITS, _WANTED = 132, 4
# Elements of a part that a thread holds in the untuned choice: one load of 16 bytes of a 16-bit dtype, or two.
_HELD = {False: 8, True: 16}
# The same of a candidate; each part has as many loads in flight.
_FEWEST, _MOST = 1, 32
_ROWS, _WARPS = (1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8)


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device at all, or None."""
    if reason := refuses_device(device):
        return reason
    if problem.v_head_dim > MAX_HEAD_DIM:
        return f"v={problem.v_head_dim} is above {MAX_HEAD_DIM}: a row is held in registers"
    return None


def heuristic(problem: Problem, device: Device) -> Config:
    """The untuned config: four warps a program, and fewer where rows do not give each multiprocessor several."""
    rows, width = problem.num_rows * problem.num_q_heads, padded(problem.v_head_dim)
    wanted = _WANTED * (device.units or _UNITS)

    def block(warps: int) -> int:
        return max(1, 32 * warps * _HELD[problem.num_parts == 2] // width)

    warps = next((n for n in (4, 2) if rows >= block(n) * wanted), 1)
    return Config(block_rows=block(warps), num_warps=warps)


def candidates(problem: Problem, device: Device) -> tuple[Config, ...]:
    """All sizes of blocks whose elements suit their threads."""
    return nearest_first(heuristic(problem, device), _all(problem), doubling=("block_rows", "num_warps"))


def _all(problem: Problem) -> Iterator[Config]:
    rows, width = problem.num_rows * problem.num_q_heads, padded(problem.v_head_dim)
    for block, warps in itertools.product(_ROWS, _WARPS):
        held = block * width / (32 * warps)
        if (block == 1 or block < 2 * rows) and _FEWEST <= held <= _MOST:
            yield Config(block_rows=block, num_warps=warps)
