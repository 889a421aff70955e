"""Problems and devices that the kernel does not support, and the configs worth trying."""

import itertools
from collections.abc import Iterator

from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.recurrent import Recurrent
from attn_tune.kernels.lang.space import nearest_first
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import refuses_device
from attn_tune.kernels.lang.triton.steps.config import Config
from attn_tune.schema.device import Device

MAX_ROWS = 512
# Tokens of a sequence from which on chunks are faster for certain: a step takes about a microsecond.
MOST_TOKENS = 64
# Multiprocessors of a device that does not say, and programs that each has in the untuned choice at least.
_UNITS, _WANTED = 132, 4
# Elements of a state that a thread of a candidate holds.
_FEWEST, _MOST = 4, 128


def unsupported(problem: Recurrent, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device at all, or None."""
    if reason := refuses_device(device):
        return reason
    if padded(problem.head_dim) > MAX_ROWS:
        return f"h={problem.head_dim} is above {MAX_ROWS}: a column of the state is held in registers"
    if (longest := max(problem.lengths)) > MOST_TOKENS:
        return f"a sequence of {longest} tokens is longer than {MOST_TOKENS}: tokens are taken one after the other"
    return None


def heuristic(problem: Recurrent, device: Device) -> Config:
    """The untuned config: rows of 128 bytes of a state, and fewer where states do not fill the device."""
    rows, most = padded(problem.head_dim), padded(problem.v_head_dim)
    states = problem.batch * problem.num_value_heads
    block = min(32, most)
    while block > 8 and states * -(-problem.v_head_dim // block) < _WANTED * (device.units or _UNITS):
        block //= 2
    warps = 1
    while warps < 8 and rows * block > 32 * warps * 32:
        warps *= 2
    return Config(block_v=block, num_warps=warps)


def candidates(problem: Recurrent, device: Device) -> tuple[Config, ...]:
    """All tiles whose elements suit their threads."""
    return nearest_first(heuristic(problem, device), _all(problem), doubling=("block_v", "num_warps"))


def _all(problem: Recurrent) -> Iterator[Config]:
    rows = padded(problem.head_dim)
    for block, warps in itertools.product(tried(Config, "block_v"), tried(Config, "num_warps")):
        if block <= padded(problem.v_head_dim) and _FEWEST <= rows * block / (32 * warps) <= _MOST:
            yield Config(block_v=block, num_warps=warps)
