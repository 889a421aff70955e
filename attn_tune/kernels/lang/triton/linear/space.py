"""The untuned config of linear attention in chunks, and the configs worth trying."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from attn_tune.kernels.knobs import knobs_of, tried
from attn_tune.kernels.lang.recurrent import Recurrent
from attn_tune.kernels.lang.space import nearest_feasible
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import has_tensor_memory, shared_limit
from attn_tune.kernels.lang.triton.linear.config import (
    BackwardConfig,
    ChannelBackwardConfig,
    ChannelForwardConfig,
    ForwardConfig,
)
from attn_tune.kernels.lang.triton.linear.limits import infeasible
from attn_tune.schema.device import Device

# Multiprocessors of a device that does not say.
_UNITS = 132
# A segment has so many chunks at least, and there are so many segments at most, in the untuned choice.
_SHORTEST, _MOST_SEGMENTS = 8, 16
# Rows of a product that each warp holds.
_WARP_ROWS = 16


def forward_heuristic(problem: Recurrent, device: Device) -> ForwardConfig:
    """The forward's untuned config: tiles of columns, then segments, until each multiprocessor has a program."""
    # GPUs with less shared memory than Hopper's spill registers with 256 channels and 64 columns, and walks with a gate
    # a head spill everywhere.
    is_roomy = problem.gate == "channel" and shared_limit(device) >= 200 * 1024
    chunk, block_v = _chunk(problem), _columns(problem, device, most_of_long=64 if is_roomy else 32)
    programs = problem.batch * problem.num_value_heads * -(-problem.v_head_dim // block_v)
    longest, segments = max(problem.lengths), 1
    while segments < _MOST_SEGMENTS and segments * programs < (device.units or _UNITS):
        if longest < 2 * segments * _SHORTEST * chunk:
            break
        segments *= 2
    walk: dict[str, Any] = {
        "chunk": chunk,
        "block_v": block_v,
        "num_warps": 4,
        "num_stages": _stages(problem),
        "segments": segments,
        # 433 us where 482 were taken otherwise on an H200 (96 heads with a gate each, 8192 tokens).
        "turned": _is_turnable(problem, block_v, num_warps=4),
    }
    if problem.gate == "channel":
        return ChannelForwardConfig(**walk, **_prepared(problem))
    return ForwardConfig(**walk)


def backward_heuristic(problem: Recurrent, device: Device) -> BackwardConfig:
    """The backward's untuned config."""
    is_channel, is_long = problem.gate == "channel", padded(problem.head_dim) > 128
    is_grouped, is_roomy = problem.group_size > 1, shared_limit(device) >= 200 * 1024
    # With a gate a channel a program of the gradients has some channels only, so their number does not matter.
    # Otherwise chunks of 64 with 256 channels took 3653 us where 32 took 8890 on an H200 (16 heads, 4 times 4096
    # tokens). They spill kilobytes of registers on Ampere, and do not fit Blackwell's tensor memory where heads share
    # a key.
    is_tight = not is_roomy or (is_grouped and has_tensor_memory(device))
    is_crowded = problem.dtype == "float32" or (is_long and not is_channel and is_tight)
    chunk = min(_chunk(problem), 32) if is_crowded else _chunk(problem)
    if is_crowded:
        tile = 16
    elif is_channel:
        # 3394 us where 16 columns, chunks of 32 and 8 warps took 19937 on an H200 (8 times 4096 tokens, 4 heads of 256
        # channels and 512 values). With 128 channels 64 columns in 2 stages took 4497 us where 32 in one took 5336 (96
        # heads, 8192 tokens).
        tile = 64 if is_long or shared_limit(device) > 120 * 1024 else 32
    else:
        # Sums over the heads of a group stay in registers: with 64 columns 7453 us became 19486 on an H100 (80 heads of
        # one key head, 8 times 4096 tokens). Without groups 64 columns took 2630 us on an H200 where 32 took 3053 (96
        # heads, 8192 tokens, 2 stages).
        tile = 32 if is_grouped or is_long else 64
    if problem.dtype == "float32":
        stages = gradient_stages = 1
    else:
        # 2498 us where 64 columns in 2 stages took 2630 on an H200 (96 heads with a gate each, 8192 tokens), and 2619
        # where one stage took 2922 (4 heads of 256 channels, 8 times 4096 tokens). Three of 256 channels spill on
        # Ampere and Ada.
        stages = 1 if is_long and not is_roomy else 3
        # In one stage gradients of heads spill kilobytes of registers on Ampere and Ada. On an H200 three took 2387 us
        # where two took 2496 and one 2927 (96 heads), 5784 where two took 6170 (80 heads of one key head, 8 times 4096
        # tokens), and 2929 where two took 3197 (4 heads of 256 channels, a gate each).
        gradient_stages = 2 if tile == 64 and not is_roomy else 3
    walk = {
        "chunk": chunk,
        "block_v": min(32, padded(problem.v_head_dim)),
        "num_warps": 4,
        "num_stages": stages,
        "gradient_block_v": min(tile, padded(problem.v_head_dim)),
        "gradient_warps": 8 if is_crowded or (chunk == 64 and not is_channel) else 4,
        "gradient_stages": gradient_stages,
    }
    if is_channel:
        # 5502 us where 64 columns and 8 warps took 6814 on an H200 (96 heads, 8192 tokens).
        return ChannelBackwardConfig(**walk, **_prepared(problem), gradient_columns=min(32, padded(problem.head_dim)))
    return BackwardConfig(**walk)


def forward_candidates(problem: Recurrent, device: Device) -> tuple[ForwardConfig, ...]:
    """Walks, whole and in segments; and the launch that prepares chunks, where there is one, with the untuned walk."""
    start = forward_heuristic(problem, device)
    return _nearest(problem, device, start, itertools.chain(_forwards(problem, device, start), _others(problem, start)))


def backward_candidates(problem: Recurrent, device: Device) -> tuple[BackwardConfig, ...]:
    """Each group of launches by itself with the others as in the untuned config."""
    start = backward_heuristic(problem, device)
    return _nearest(problem, device, start, itertools.chain(_backwards(problem, start), _others(problem, start)))


def adapt_forward(tuned: Recurrent, problem: Recurrent, device: Device, config: ForwardConfig) -> ForwardConfig:
    """The config of another number of tokens, sequences or heads, with no segment without a chunk."""
    return dataclasses.replace(config, segments=min(config.segments, _most_segments(problem, config.chunk)))


def _nearest(problem: Recurrent, device: Device, start: Any, configs: Iterator[Any]) -> tuple[Any, ...]:
    # A flag has no doublings.
    doubling = tuple(knob for knob in knobs_of(type(start)) if knob != "turned")
    return nearest_feasible(start, configs, lambda config: infeasible(problem, device, config), doubling=doubling)


def _forwards(problem: Recurrent, device: Device, start: ForwardConfig) -> Iterator[ForwardConfig]:
    for chunk, block_v in itertools.product(_chunks(problem), _tiles(problem)):
        for warps, stages in itertools.product((4, 8), tried(ForwardConfig, "num_stages")):
            walk = {"chunk": chunk, "block_v": block_v, "num_warps": warps, "num_stages": stages}
            yield dataclasses.replace(start, **walk)
            if _is_turnable(problem, block_v, warps):
                yield dataclasses.replace(start, **walk, turned=True)
    walks = problem.batch * problem.num_value_heads
    for segments in tried(ForwardConfig, "segments"):
        few = segments * 4 <= _most_segments(problem, start.chunk) and walks * segments <= 8 * (device.units or _UNITS)
        if segments == 1 or few:
            for block_v, stages in itertools.product(_tiles(problem), (1, 2, 3)):
                yield dataclasses.replace(start, segments=segments, block_v=block_v, num_stages=stages)


def _backwards(problem: Recurrent, start: BackwardConfig) -> Iterator[BackwardConfig]:
    for chunk in _chunks(problem):
        base = dataclasses.replace(start, chunk=chunk)
        for block_v, warps, stages in itertools.product(_tiles(problem), (4, 8), (1, 2, 3)):
            yield dataclasses.replace(base, block_v=block_v, num_warps=warps, num_stages=stages)
        for block_v, warps, stages in itertools.product(
            _tiles(problem), (4, 8), tried(BackwardConfig, "gradient_stages")
        ):
            sizes = {"gradient_block_v": block_v, "gradient_warps": warps, "gradient_stages": stages}
            yield dataclasses.replace(base, **sizes)


def _others(problem: Recurrent, start: Any) -> Iterator[Any]:
    """Launches that only a gate a channel needs, with others as in ``start``."""
    if problem.gate != "channel":
        return
    widths = tuple(size for size in (32, 64, 128) if size <= padded(problem.head_dim))
    for warps, columns in itertools.product((4, 8), widths):
        yield dataclasses.replace(start, prepare_warps=warps, prepare_columns=columns)
        if isinstance(start, ChannelBackwardConfig):
            yield dataclasses.replace(start, gradient_warps=warps, gradient_columns=columns)


def _prepared(problem: Recurrent) -> dict[str, Any]:
    if problem.dtype == "float32":
        return {"prepare_warps": 8, "prepare_columns": min(128, padded(problem.head_dim))}
    # On an H200 these took 1160 us where 8 warps took 1409 with all 128 channels (gla, 96 heads, 8192 tokens).
    return {"prepare_warps": 4, "prepare_columns": min(64, padded(problem.head_dim))}


def _chunk(problem: Recurrent) -> int:
    """Products of float32 lose less in short chunks."""
    return 16 if problem.dtype == "float32" else min(64, padded(max(problem.lengths)))


def _chunks(problem: Recurrent) -> tuple[int, ...]:
    if problem.dtype == "float32":
        return (16, 32)
    most = padded(max(problem.lengths))
    return tuple(size for size in (16, 32, 64, 128) if size <= most and size >= min(most, 32))


def _tiles(problem: Recurrent) -> tuple[int, ...]:
    return tuple(size for size in tried(ForwardConfig, "block_v") if size <= padded(problem.v_head_dim))


def _columns(problem: Recurrent, device: Device, most_of_long: int) -> int:
    """Columns of a walk: fewer where heads are few, and at most so many of states with more than 128 rows."""
    walks, enough = problem.batch * problem.num_value_heads, device.units or _UNITS
    block = min(32 if problem.dtype == "float32" else 64, padded(problem.v_head_dim))
    if padded(problem.head_dim) > 128:
        # Of 4 heads of 256 channels and 4 times 4096 tokens 64 columns took 365 us, 32 took 420 (H200).
        block, enough = min(most_of_long, block), enough // 2
    while block > 32 and walks * -(-problem.v_head_dim // block) < enough:
        block //= 2
    return block


def _stages(problem: Recurrent) -> int:
    return 1 if padded(problem.head_dim) > 128 or problem.dtype == "float32" else 2


def _most_segments(problem: Recurrent, chunk: int) -> int:
    return max(1, max(problem.lengths) // chunk)


def _is_turnable(problem: Recurrent, block_v: int, num_warps: int) -> bool:
    """Whether a turned walk is worth trying: in 16 bits, with as many columns as give each warp its rows of a product.

    Any other is right too.
    """
    return problem.dtype != "float32" and num_warps * _WARP_ROWS <= min(block_v, padded(problem.v_head_dim))
