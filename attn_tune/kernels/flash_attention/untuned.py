"""The order of untuned kernels on Hopper: which one a problem should prefer that no pack knows.

Forwards are ordered by the time that each should take, by a model with some ten figures a kernel; backwards by rules.
Both are fitted to kernels raced with one another on an H200 (``benchmarks/unseen_shapes.py``, recorded in
``benchmarks/results/h200``).
"""

import functools
import math
from dataclasses import dataclass

from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.schema.device import Device

# Places of kernels that are in no order below, and of all of them on other GPUs.
_ELSEWHERE = {"cudnn": 60, "triton_split": 55, "triton": 50, "triton_hopper": 45}
_FIRST = 70
_HOPPER = 90
# Multiprocessors of a device that does not say: those of an H100 or H200 SXM.
_UNITS = 132
# Rows of the tiles of `triton`.
_SMALL_TILE = 64
# Through a window of so few keys `triton` is ahead of all others: 1.5 times cuDNN's speed forward, 1.9 times backward.
_NARROW_WINDOW = 256
# Up to so many queries, and rows that share keys, all that counts is to read keys and values once: `triton_split`, or
# cuDNN where that may not.
_FEW_QUERIES, _FEW_ROWS = 8, 32
# Keys of which most of a batch of packed documents may be one document.
_ONE_DOCUMENT = 1024
# Bytes a microsecond, of the parts of a split output.
_BANDWIDTH = 4.4e6


@dataclass(frozen=True, slots=True)
class _Cost:
    """The time of a bf16 forward on an H200, in microseconds; three figures are for head dims up to 64, 128 and 256.

    Attributes:
      launch: time of any call, however small.
      resident: programs that one multiprocessor holds at a time.
      start: time of a program before its first tile, and the time that each 64 of the head dim add.
      tile: time of a tile of keys while all multiprocessors are busy.
      lone: time of a tile of keys in a program that has a multiprocessor to itself.
      cap, sinks, lengths: factors of the time with a soft cap, with sinks, and with padding said as lengths.
    """

    launch: float
    resident: tuple[int, int, int]
    start: tuple[float, float]
    tile: tuple[float, float, float]
    lone: tuple[float, float, float]
    cap: float = 1.0
    sinks: float = 1.0
    lengths: float = 1.0


# Fitted to 136 (`triton_hopper`), 97, 91 and 28 problems, most within 10 % (`triton`: 18 %). The kernel that is least
# takes 1.005 times the fastest one's time (geometric mean of 131 problems; worst 1.26).
_COSTS = {
    "cudnn": _Cost(
        launch=4.3, resident=(1, 1, 1), start=(0.69, 0.57), tile=(1.11, 1.65, 3.16),
        lone=(1.11, 0.77, 4.06), sinks=1.17, lengths=0.93,
    ),
    "triton_hopper": _Cost(
        launch=10.8, resident=(1, 1, 1), start=(0.25, 0.5), tile=(1.05, 1.5, 1.33),
        lone=(1.05, 1.46, 1.47), cap=1.25, lengths=0.9,
    ),
    "triton": _Cost(
        launch=2.2, resident=(3, 2, 1), start=(0.0, 0.92), tile=(0.294, 0.542, 2.2),
        lone=(0.735, 0.774, 2.6), cap=1.45, lengths=1.15,
    ),
    "triton_split": _Cost(
        launch=3.6, resident=(3, 2, 1), start=(0.0, 0.79), tile=(0.51, 0.6, 0.535),
        lone=(0.85, 0.8, 0.02), cap=1.68, lengths=1.13,
    ),
}  # fmt: skip
# The second launch of split keys; and what packing costs where it saves nothing: tiles of one head's rows.
_COMBINE_US, _IDLE_PACKING_US = 1.7, 0.9
# Backward: lengths up to which `triton` is ahead of cuDNN where heads share keys (1.05 to 1.35 times), where they do
# not (1.01 to 1.16 times), and at head dim 64 under a causal mask (1.11 times at 16x1k, 0.97 at 4x4k).
_SHORT_SHARED, _SHORT, _SHORT_CAUSAL = 1024, 512, 2048
# Tiles of queries that a program of dk/dv walks through, up to which `triton` is ahead where there are no more programs
# than multiprocessors: 1.2 times as fast at 12 (2x256), 0.6 at 28 (1x241).
_FEW_WALKED = 12


def priority(kernel: str, problem: Problem, direction: str, device: Device) -> int:
    """The place of ``kernel`` among untuned kernels for CUDA, highest first; others stand below 45."""
    if device.compute_capability == _HOPPER:
        order = (_forward if direction == "fwd" else _backward)(problem, device)
        if kernel in order:
            return _FIRST - order.index(kernel)
    return _ELSEWHERE[kernel]


def _forward(problem: Problem, device: Device) -> tuple[str, ...]:
    """The kernels for a forward, the preferred one first."""
    if keys_a_row_sees(problem) <= _NARROW_WINDOW:
        return "triton_split", "triton", "triton_hopper", "cudnn"
    has_documents = problem.has_segments and not problem.has_lengths
    if has_documents and problem.kv_len > _ONE_DOCUMENT:
        # `triton_split` reads all of them, the others only what a row may see.
        return *(k for k in _sorted(problem, device) if k != "triton_split"), "triton_split"
    if problem.q_len <= _FEW_QUERIES and problem.q_len * problem.group_size <= _FEW_ROWS:
        return "triton_split", "cudnn", "triton", "triton_hopper"
    return _sorted(problem, device)


def _sorted(problem: Problem, device: Device) -> tuple[str, ...]:
    """The kernels that have a cost, the fastest first."""
    return tuple(sorted(_COSTS, key=lambda kernel: _microseconds(kernel, problem, device)))


@functools.lru_cache(maxsize=4096)
def _microseconds(kernel: str, problem: Problem, device: Device) -> float:
    """The time that a forward should take: that of all tiles on all multiprocessors, or of the longest program."""
    cost, width = _COSTS[kernel], max(problem.head_dim, problem.v_head_dim)
    column = 0 if width <= 64 else 1 if width <= 128 else 2
    programs, tiles, longest, after = _work(kernel, problem, device)
    share = cost.cap ** (problem.soft_cap is not None) * cost.sinks**problem.has_sinks
    share *= cost.lengths**problem.has_lengths
    start = cost.start[0] + cost.start[1] * 2**column
    units = device.units or _UNITS
    rounds = programs / (units * cost.resident[column])
    # The last round of programs takes as long as a full one.
    emptiness = math.ceil(rounds) / rounds if rounds > 1 else 1.0
    busy = (programs * start + tiles * cost.tile[column]) / units * emptiness
    lone = start + longest * cost.lone[column]
    # Between the two a little more than the longer one.
    return cost.launch + share * (busy**4 + lone**4) ** 0.25 + after


def _work(kernel: str, problem: Problem, device: Device) -> tuple[int, float, float, float]:
    """Programs, tiles of keys of all and of the longest, and microseconds of what follows."""
    heads, width = problem.batch * problem.num_q_heads, max(problem.head_dim, problem.v_head_dim)
    if kernel == "triton_split":
        return _split_work(problem, device)
    if kernel != "triton":
        keys = 64 if kernel == "triton_hopper" and width > 128 else 128
        programs, tiles, longest = _tiles(problem, 128, keys)
        return heads * programs, heads * tiles, longest, 0.0
    full = 64 if width <= 128 else 128
    rows = min(full, max(16, 1 << (problem.q_len - 1).bit_length()))
    programs, tiles, longest = _tiles(problem, rows, 64)
    # A tile of fewer rows takes less, but not in proportion.
    size = (rows + full / 2) / (1.5 * full)
    return heads * programs, heads * tiles * size, longest * size, 0.0


def _split_work(problem: Problem, device: Device) -> tuple[int, float, float, float]:
    """``_work`` of the untuned config of `triton_split`."""
    from attn_tune.kernels.flash_attention.triton_split import space
    from attn_tune.kernels.flash_attention.triton_split.limits import packed_rows

    config, rows = space.heuristic(problem, device), packed_rows(problem)
    heads = problem.batch * problem.num_kv_heads
    programs = heads * -(-rows // config.block_q) * config.num_splits
    share = problem.visible_pairs / (problem.q_len * problem.kv_len)
    # Tiles under the diagonal are whole.
    share = max(share, 0.5) if problem.causal else share
    longest = space.visible_keys(problem) * share / config.block_k / config.num_splits
    if config.num_splits == 1:
        after = _IDLE_PACKING_US if _SMALL_TILE < problem.q_len <= 4 * _SMALL_TILE else 0.0
        return programs, programs * longest, longest, after
    parts = heads * rows * config.num_splits * 4 * problem.v_head_dim
    return programs, programs * longest, longest, _COMBINE_US + parts / _BANDWIDTH


def _tiles(problem: Problem, rows: int, keys: int) -> tuple[int, int, int]:
    """Tiles of rows of one head; tiles of keys that these see, all together and at most."""
    left, right = problem.bounds
    seen = []
    for first in range(problem.offset, problem.kv_len, rows):
        last = min(first + rows, problem.kv_len) - 1
        low = 0 if left is None else max(0, first - left)
        high = problem.kv_len - 1 if right is None else min(problem.kv_len - 1, last + right)
        seen.append(max(0, high // keys - low // keys + 1) if high >= low else 0)
    return len(seen), sum(seen), max(seen)


def _backward(problem: Problem, device: Device) -> tuple[str, ...]:
    """The kernels for a backward, the preferred one first."""
    length = max(problem.q_len, problem.kv_len)
    width = max(problem.head_dim, problem.v_head_dim)
    programs = problem.batch * problem.num_kv_heads * -(-problem.kv_len // _SMALL_TILE)
    walked = problem.group_size * -(-problem.q_len // _SMALL_TILE)
    if keys_a_row_sees(problem) <= _NARROW_WINDOW:
        return "triton", "cudnn"
    units = device.units or _UNITS
    if programs <= units and walked <= _FEW_WALKED:
        return "triton", "cudnn"
    if 2 * programs < units or problem.has_lengths:
        return "cudnn", "triton"
    # A sum over rows for each head's sink is one more launch.
    shared = _SHORT if problem.has_sinks else _SHORT_SHARED
    is_whole = problem.q_len % _SMALL_TILE == 0 and problem.kv_len % _SMALL_TILE == 0
    if width <= 128 and (
        length <= shared if problem.group_size > 1 else length <= _SHORT and is_whole
    ):
        return "triton", "cudnn"
    if width <= 64 and problem.causal and length <= _SHORT_CAUSAL:
        return "triton", "cudnn"
    return "cudnn", "triton"


def keys_a_row_sees(problem: Problem) -> float:
    """The keys that a row sees through its window; without one infinity."""
    left, right = problem.bounds
    return math.inf if left is None or right is None else left + right + 1
