"""The order of untuned kernels on Hopper: which one a problem should prefer that no pack knows.

The figures are untuned kernels raced with one another on an H200 over 36 drawn shapes and the grid ``decode``
(``benchmarks/unseen_shapes.py untuned``, recorded in ``benchmarks/results/h200``).
"""

import math

from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.schema.device import Device

# Places of kernels that are in no order below, and of all of them on other GPUs.
_ELSEWHERE = {"cudnn": 60, "triton_split": 55, "triton": 50, "triton_hopper": 45}
_FIRST = 70
_HOPPER = 90
# Multiprocessors of a device that does not say: those of an H100 or H200 SXM.
_UNITS = 132
# Rows of a tile of `triton_hopper`, and of `triton`; keys that both take at a time.
_TILE, _SMALL_TILE = 128, 64
# Through a window of so few keys `triton` is ahead of all others: 1.5 times cuDNN's speed forward, 1.9 times backward.
_NARROW_WINDOW = 256
# Below this share of busy rows splitting the keys is faster: full tiles of 128 rows on every multiprocessor reach
# 650 TFLOP/s at head dim 128, split keys 420.
_LEAST_BUSY = 0.65
# Pairs of tiles a multiprocessor, counted at head dim 128. Up to the first figure the short start of `triton` wins (1.4
# times as fast at one pair), up to the second that of cuDNN (1.12 times at 17). `triton_hopper` starts within 12 us and
# is ahead at 35 and more.
_FEW_PAIRS, _SOME_PAIRS = 3, 32
# Speed of `triton_hopper` over `triton` on full tiles, by head dim up to.
_HOPPER_SPEED = {64: 1.2, 128: 1.4, 256: 1.5}
# Backward: keys up to which `triton` is ahead of cuDNN where heads share keys (1.05 to 1.35 times), where they do not
# and nothing is masked (1.09 times), and at head dim 64 under a causal mask (1.11 times at 16x1k, 0.97 at 4x4k).
_SHORT_SHARED, _SHORT_FULL, _SHORT_CAUSAL = 1024, 512, 2048


def priority(kernel: str, problem: Problem, direction: str, device: Device) -> int:
    """The place of ``kernel`` among untuned kernels for CUDA, highest first; others stand below 45."""
    if device.compute_capability == _HOPPER:
        order = (_forward if direction == "fwd" else _backward)(problem, device)
        if kernel in order:
            return _FIRST - order.index(kernel)
    return _ELSEWHERE[kernel]


def _forward(problem: Problem, device: Device) -> tuple[str, ...]:
    units = device.units or _UNITS
    row_tiles = problem.batch * problem.num_q_heads * -(-problem.q_len // _TILE)
    if keys_a_row_sees(problem) <= _NARROW_WINDOW:
        return "triton_split", "triton", "triton_hopper", "cudnn"
    rounds = -(-row_tiles // units)
    used = problem.q_len / (_TILE * -(-problem.q_len // _TILE))
    if used * row_tiles / (rounds * units) < _LEAST_BUSY and problem.q_len <= _TILE:
        fuller = (
            ("triton", "triton_hopper")
            if problem.q_len <= _SMALL_TILE
            else ("triton_hopper", "triton")
        )
        return "triton_split", "cudnn", *fuller
    width = max(problem.head_dim, problem.v_head_dim)
    heads = problem.batch * problem.num_q_heads
    pairs = heads * problem.visible_pairs / (_TILE * _TILE * used) / units * width / 128
    if (
        pairs <= _FEW_PAIRS
        and problem.group_size == 1
        and problem.q_len > _SMALL_TILE
        and width <= 128
    ):
        # There is nothing to pack, and too little to split.
        return "triton", "triton_split", "cudnn", "triton_hopper"
    if pairs <= _FEW_PAIRS:
        return "triton_split", "triton", "cudnn", "triton_hopper"
    if pairs <= _SOME_PAIRS:
        return "cudnn", "triton_hopper", "triton_split", "triton"
    speed = next((s for bound, s in _HOPPER_SPEED.items() if width <= bound), 1.0)
    if used * speed < problem.q_len / (_SMALL_TILE * -(-problem.q_len // _SMALL_TILE)):
        return "triton", "triton_hopper", "cudnn", "triton_split"
    return "triton_hopper", "cudnn", "triton_split", "triton"


def _backward(problem: Problem, device: Device) -> tuple[str, ...]:
    length = max(problem.q_len, problem.kv_len)
    programs = problem.batch * problem.num_kv_heads * -(-problem.kv_len // _SMALL_TILE)
    is_narrow_head = max(problem.head_dim, problem.v_head_dim) <= 64
    is_whole = problem.q_len % _SMALL_TILE == 0 and problem.kv_len % _SMALL_TILE == 0
    is_full = problem.bounds == (None, None)
    if keys_a_row_sees(problem) <= _NARROW_WINDOW:
        return "triton", "cudnn"
    if 2 * programs < (device.units or _UNITS):
        # Its two launches are too small to hide one another's latency: cuDNN is 1.1 to 1.2 times as fast.
        return "cudnn", "triton"
    if problem.group_size > 1 and length <= _SHORT_SHARED:
        return "triton", "cudnn"
    if is_narrow_head and problem.causal and length <= _SHORT_CAUSAL:
        return "triton", "cudnn"
    if is_narrow_head and is_full and is_whole and length <= _SHORT_FULL:
        return "triton", "cudnn"
    return "cudnn", "triton"


def keys_a_row_sees(problem: Problem) -> float:
    """The keys that a row sees through its window; without one infinity."""
    left, right = problem.bounds
    return math.inf if left is None or right is None else left + right + 1
