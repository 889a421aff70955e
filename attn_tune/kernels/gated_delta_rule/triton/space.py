"""The untuned config, and the configs worth trying."""

import dataclasses
import itertools
from collections.abc import Iterator

from attn_tune.kernels.gated_delta_rule.triton.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.gated_delta_rule.triton.limits import infeasible, is_narrow
from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.space import nearest_feasible
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import shared_limit
from attn_tune.ops.gated_delta_rule.problem import Problem
from attn_tune.schema.device import Device

# Multiprocessors of a device that does not say.
_UNITS = 132
# Walks of each multiprocessor below which columns are shared out among more of them.
_ENOUGH = 0.75
# Segments make so many times the work, and are worth it from so many chunks on.
_WORK, _LONG, _MOST_SEGMENTS = 3, 32, 16
# Shared memory that three stages of walks of 64 columns need, of 128 rows and 64 tokens; of the forward's, 189952.
_SHARED = 214528
_DOUBLING = ("chunk", "prepare_warps", "block_v", "num_warps", "num_stages", "segments")
_GRADIENTS = ("pair_warps", "gradient_block_v", "gradient_columns", "gradient_warps", "gradient_stages")


def forward_heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """The forward's untuned config: a tile of columns that gives each multiprocessor a program.

    Long sequences of a few heads are cut into segments, which makes twice to three times the work: on an H200 into as
    many as give no multiprocessor two programs of 64 columns.
    """
    chunk, block_v, segments = _chunk(problem), _columns(problem, device), 1
    walks = problem.batch * problem.num_value_heads * -(-problem.v_head_dim // 32)
    units = device.units or _UNITS
    if _WORK * walks <= units and max(problem.lengths) >= _LONG * chunk:
        block_v = min(32 if _is_wide(problem) else 64, padded(problem.v_head_dim))
        walks = problem.batch * problem.num_value_heads * -(-problem.v_head_dim // block_v)
        while segments < _MOST_SEGMENTS and 2 * segments * walks <= units:
            segments *= 2
    return ForwardConfig(
        chunk=chunk,
        prepare_warps=4,
        block_v=block_v if segments > 1 else _wider(problem, device, block_v),
        num_warps=4,
        num_stages=_stages(problem, device),
        segments=segments,
    )


def forward_candidates(problem: Problem, device: Device) -> tuple[ForwardConfig, ...]:
    """Walks with the untuned launch that prepares chunks, and others of it with the untuned walk."""
    return nearest_feasible(
        forward_heuristic(problem, device),
        _forwards(problem, device),
        lambda config: infeasible(problem, device, config),
        doubling=_DOUBLING,
    )


def backward_heuristic(problem: Problem, device: Device) -> BackwardConfig:
    """The backward's untuned config."""
    wide = _is_wide(problem)
    chunk = _chunk(problem)
    if is_narrow(problem):
        chunk = min(32, chunk)
    # 11 % off the backward on an H200, 16/32 heads, 32k tokens: with 128 registers two blocks fit a multiprocessor.
    is_measured = _is_measured(problem) and problem.head_dim > 64
    return BackwardConfig(
        chunk=chunk,
        prepare_warps=4,
        block_v=_wider(problem, device, min(32, _columns(problem, device)), 2),
        num_warps=4,
        num_stages=_stages(problem, device),
        pair_warps=8 if chunk == 64 or wide else 4,
        gradient_block_v=min(16 if wide else 64, padded(problem.v_head_dim)),
        gradient_columns=64 if is_measured else min(128, padded(problem.head_dim)),
        gradient_warps=8 if chunk == 64 or wide else 4,
        gradient_stages=2 if is_measured else 1,
        gradient_registers=128 if is_measured else None,
    )


def backward_candidates(problem: Problem, device: Device) -> tuple[BackwardConfig, ...]:
    """Each group of launches by itself with the others as in the untuned config."""
    return nearest_feasible(
        backward_heuristic(problem, device),
        _backwards(problem, device),
        lambda config: infeasible(problem, device, config),
        doubling=(*_DOUBLING[:-1], *_GRADIENTS),
    )


def adapt_forward(tuned: Problem, problem: Problem, device: Device, config: ForwardConfig) -> ForwardConfig:
    """The config of another number of tokens, sequences or heads, with no segment without a chunk."""
    return dataclasses.replace(config, segments=min(config.segments, _most_segments(problem, config.chunk)))


def _forwards(problem: Problem, device: Device) -> Iterator[ForwardConfig]:
    start = forward_heuristic(problem, device)
    for most in (None, *tried(ForwardConfig, "prepare_registers")):
        yield dataclasses.replace(start, prepare_registers=most)
    for chunk, warps in itertools.product(_chunks(problem), (2, 4, 8)):
        yield dataclasses.replace(start, chunk=chunk, prepare_warps=warps)
    for chunk, block_v in itertools.product(_chunks(problem), _tiles(problem)):
        for warps, stages in itertools.product((4, 8), tried(ForwardConfig, "num_stages")):
            yield dataclasses.replace(start, chunk=chunk, block_v=block_v, num_warps=warps, num_stages=stages)
    walks = problem.batch * problem.num_value_heads
    for segments in tried(ForwardConfig, "segments")[1:]:
        if segments * 4 <= _most_segments(problem, start.chunk) and walks * segments <= 4 * (device.units or _UNITS):
            for block_v, stages in itertools.product(_tiles(problem), (1, 2, 3)):
                yield dataclasses.replace(start, segments=segments, block_v=block_v, num_stages=stages)


def _backwards(problem: Problem, device: Device) -> Iterator[BackwardConfig]:
    start = backward_heuristic(problem, device)
    for most in tried(BackwardConfig, "prepare_registers"):
        yield dataclasses.replace(start, prepare_registers=most)
    for chunk in _chunks(problem):
        base = dataclasses.replace(start, chunk=chunk)
        for warps in (2, 4, 8):
            yield dataclasses.replace(base, prepare_warps=warps)
        for block_v, warps, stages in itertools.product(_tiles(problem), (4, 8), tried(BackwardConfig, "num_stages")):
            yield dataclasses.replace(base, block_v=block_v, num_warps=warps, num_stages=stages)
        for warps, most in itertools.product((4, 8), (None, *tried(BackwardConfig, "gradient_registers"))):
            yield dataclasses.replace(base, pair_warps=warps, gradient_registers=most)
        for columns, stages in itertools.product(tried(BackwardConfig, "gradient_columns"), (1, 2)):
            if columns < padded(problem.head_dim):
                sizes = {"gradient_columns": columns, "gradient_stages": stages}
                yield dataclasses.replace(base, **sizes)
                yield dataclasses.replace(base, **sizes, gradient_registers=128)
        for block_v, warps, stages in itertools.product(_tiles(problem), (4, 8), (1, 2)):
            sizes = {"gradient_block_v": block_v, "gradient_warps": warps, "gradient_stages": stages}
            yield dataclasses.replace(base, **sizes)


def _chunk(problem: Problem) -> int:
    """Products of float32 lose less in short chunks."""
    return 16 if problem.dtype == "float32" else min(64, padded(max(problem.lengths)))


def _chunks(problem: Problem) -> tuple[int, ...]:
    most = padded(max(problem.lengths))
    return (
        (16, 32) if problem.dtype == "float32" else tuple(c for c in (16, 32, 64) if c <= most and c >= min(most, 32))
    )


def _tiles(problem: Problem) -> tuple[int, ...]:
    return tuple(size for size in tried(ForwardConfig, "block_v") if size <= padded(problem.v_head_dim))


def _columns(problem: Problem, device: Device) -> int:
    walks, block = problem.batch * problem.num_value_heads, min(32, padded(problem.v_head_dim))
    while block > 16 and walks * -(-problem.v_head_dim // block) < _ENOUGH * (device.units or _UNITS):
        block //= 2
    return block


def _wider(problem: Problem, device: Device, block_v: int, directions: int = 1) -> int:
    """64 columns where walks of 32 are too many to run at one time, each alone on a multiprocessor.

    That took 25 % off the forward on an H200 (16/64 heads, 32768 tokens).
    """
    walks = directions * problem.batch * problem.num_value_heads * -(-problem.v_head_dim // 32)
    fills = walks > (device.units or _UNITS) and _stages(problem, device) == 3
    return 64 if block_v == 32 and fills and _is_measured(problem) and problem.v_head_dim > 32 else block_v


def _is_measured(problem: Problem) -> bool:
    """Whether ``problem`` is of the kind whose registers and columns were timed: bfloat16, heads of 65 to 128."""
    return _chunk(problem) == 64 and problem.dtype == "bfloat16" and padded(problem.head_dim) <= 128


def _stages(problem: Problem, device: Device) -> int:
    # With two, copies are waited for as soon as they begin: where three fit, they took 28 % off the forward on an H100
    # (32 heads, 32768 tokens: 1.08 ms where two took 1.51), and 5 % off the backward.
    return 1 if _is_wide(problem) else 3 if shared_limit(device) >= _SHARED else 2


def _is_wide(problem: Problem) -> bool:
    return padded(problem.head_dim) > 128 or problem.dtype == "float32"


def _most_segments(problem: Problem, chunk: int) -> int:
    return max(1, max(problem.lengths) // chunk)
