"""Problems and devices that the kernel does not support, and the configs worth trying."""

import itertools
from collections.abc import Iterator

from attn_tune.kernels.lang.space import nearest_first
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import refuses_cache, refuses_device
from attn_tune.kernels.paged_append.triton.config import Config
from attn_tune.ops.paged_append.problem import Problem
from attn_tune.schema.device import Device

MAX_HEAD_DIM = 512
# Multiprocessors of a device that does not say.
_UNITS = 132
# Of the untuned choice: rows of a program and elements of keys that a thread holds, where each multiprocessor has
# ``_WANTED`` such programs, and where there are fewer rows (an H200's best for chunks, and for steps of decoding).
_WANTED = 4
_MANY, _FEW = (16, 64), (4, 4)
# Elements of keys that one thread of a candidate holds.
_FEWEST, _MOST = 1, 64


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device at all, or None."""
    if reason := refuses_device(device) or refuses_cache(problem.cache_dtype, device):
        return reason
    for name, width in (("h", problem.head_dim), ("v", problem.v_head_dim)):
        if width > MAX_HEAD_DIM:
            return f"{name}={width} is above {MAX_HEAD_DIM}: a row is held in registers"
    return None


def heuristic(problem: Problem, device: Device) -> Config:
    """The untuned config: many loads in flight for a thread where rows fill the device, and many threads elsewhere."""
    rows = problem.tokens * problem.num_kv_heads
    block, elements = _MANY if rows >= _MANY[0] * _WANTED * (device.units or _UNITS) else _FEW
    warps = 1
    while warps < 8 and block * _width(problem) > 32 * warps * elements:
        warps *= 2
    return Config(block_rows=block, num_warps=warps)


def candidates(problem: Problem, device: Device) -> tuple[Config, ...]:
    """All sizes of blocks whose elements suit their threads."""
    return nearest_first(heuristic(problem, device), _all(problem), doubling=("block_rows", "num_warps"))


def _all(problem: Problem) -> Iterator[Config]:
    rows = problem.tokens * problem.num_kv_heads
    for block, warps in itertools.product((1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8)):
        elements = block * _width(problem) / (32 * warps)
        if (block == 1 or block < 2 * rows) and _FEWEST <= elements <= _MOST:
            yield Config(block_rows=block, num_warps=warps)


def _width(problem: Problem) -> int:
    return padded(max(problem.head_dim, problem.v_head_dim))
