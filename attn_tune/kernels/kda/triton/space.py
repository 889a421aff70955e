"""The untuned config, and the configs worth trying."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from attn_tune.kernels.kda.triton.config import BackwardConfig, ChannelChunks, ForwardConfig
from attn_tune.kernels.kda.triton.limits import infeasible
from attn_tune.kernels.knobs import knobs_of, tried
from attn_tune.kernels.lang.recurrent import Recurrent
from attn_tune.kernels.lang.space import nearest_feasible
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import shared_limit
from attn_tune.schema.device import Device

# Bytes of shared memory that walks over chunks of 64 tokens, 128 channels and 64 columns need with three stages. GPUs
# that have less spill registers with so many columns.
_THREE_STAGES = 229_376
# Multiprocessors of a device that does not say.
_UNITS = 132
# Segments make so many times the work, and are worth it from so many chunks on.
_WORK, _LONG, _MOST_SEGMENTS = 3, 32, 16


def forward_heuristic(problem: Recurrent, device: Device) -> ForwardConfig:
    """The forward's untuned config: a tile of columns that gives each multiprocessor a program.

    Long sequences of a few heads are cut into segments, which makes twice to three times the work.
    """
    walks, units, segments = problem.batch * problem.num_value_heads, device.units or _UNITS, 1
    # Of 32 heads and 8 times 4096 tokens 64 columns and three stages took 2695 us, 32 and two took 3318 (H200).
    is_roomy = shared_limit(device) >= _THREE_STAGES and not _is_wide(problem)
    most, stages = (64, 3) if is_roomy else (32, 2)
    common = _common(problem) | _walk(problem, device, walks, most, crowded_stages=stages)
    programs = walks * -(-problem.v_head_dim // 32)
    if _WORK * programs <= units and max(problem.lengths) >= _LONG * common["chunk"]:
        common |= {"block_v": min(32, padded(problem.v_head_dim)), "num_stages": 1 if _is_wide(problem) else 2}
        while segments < _MOST_SEGMENTS and segments * programs < 2 * units:
            segments *= 2
    return ForwardConfig(**common, segments=segments)


def forward_candidates(problem: Recurrent, device: Device) -> tuple[ForwardConfig, ...]:
    """Walks with the untuned launch that prepares chunks, and others of it with the untuned walk."""
    start = forward_heuristic(problem, device)
    return _nearest(problem, device, start, itertools.chain(_walks(problem, start), _segments(problem, device, start)))


def backward_heuristic(problem: Recurrent, device: Device) -> BackwardConfig:
    """The backward's untuned config."""
    channels, is_wide = padded(problem.head_dim), _is_wide(problem)
    # Both directions are walked at one time.
    walks = 2 * problem.batch * problem.num_value_heads
    common = _common(problem) | _walk(problem, device, walks, most=32 if is_wide else 64, crowded_stages=1)
    return BackwardConfig(
        **common,
        gradient_channels=min(32, channels),
        gradient_block_v=min(32 if is_wide else 64, padded(problem.v_head_dim)),
        gradient_warps=8 if is_wide else 4,
        gradient_stages=1 if is_wide else 2,
    )


def backward_candidates(problem: Recurrent, device: Device) -> tuple[BackwardConfig, ...]:
    """Each group of launches by itself with the others as in the untuned config."""
    start = backward_heuristic(problem, device)
    return _nearest(problem, device, start, itertools.chain(_walks(problem, start), _gradients(problem, start)))


def adapt_forward(tuned: Recurrent, problem: Recurrent, device: Device, config: ForwardConfig) -> ForwardConfig:
    """The config of another number of tokens, sequences or heads, with no segment without a chunk."""
    return dataclasses.replace(config, segments=min(config.segments, _most_segments(problem, config.chunk)))


def _nearest[T: ChannelChunks](problem: Recurrent, device: Device, start: T, configs: Iterator[T]) -> tuple[T, ...]:
    doubling = tuple(name for name in knobs_of(type(start)) if name != "prepare_registers")
    return nearest_feasible(start, configs, lambda config: infeasible(problem, device, config), doubling=doubling)


def _walks[T: ChannelChunks](problem: Recurrent, start: T) -> Iterator[T]:
    """Chunks, the launch that prepares them, and walks."""
    for most in (None, *tried(type(start), "prepare_registers")):
        for warps, channels in itertools.product((4, 8), _tiles("prepare_channels", problem.head_dim)):
            prepared = {"prepare_warps": warps, "prepare_channels": channels, "prepare_registers": most}
            yield dataclasses.replace(start, **prepared)
    columns = _tiles("block_v", problem.v_head_dim)
    for chunk, block_v, warps, stages in itertools.product(_chunks(problem), columns, (4, 8), (1, 2, 3)):
        yield dataclasses.replace(start, chunk=chunk, block_v=block_v, num_warps=warps, num_stages=stages)


def _segments(problem: Recurrent, device: Device, start: ForwardConfig) -> Iterator[ForwardConfig]:
    walks = problem.batch * problem.num_value_heads
    for segments in tried(ForwardConfig, "segments")[1:]:
        if segments * 4 <= _most_segments(problem, start.chunk) and walks * segments <= 4 * (device.units or _UNITS):
            for block_v, stages in itertools.product(_tiles("block_v", problem.v_head_dim), (1, 2, 3)):
                yield dataclasses.replace(start, segments=segments, block_v=block_v, num_stages=stages)


def _gradients(problem: Recurrent, start: BackwardConfig) -> Iterator[BackwardConfig]:
    channels, columns = (_tiles("prepare_channels", size) for size in (problem.head_dim, problem.v_head_dim))
    for some, block_v, warps, stages in itertools.product(channels, columns, (4, 8), (1, 2)):
        sizes = {"gradient_channels": some, "gradient_block_v": block_v}
        yield dataclasses.replace(start, **sizes, gradient_warps=warps, gradient_stages=stages)


def _common(problem: Recurrent) -> dict[str, Any]:
    """The knobs of both directions but those of walks."""
    # Of 32 heads and 8192 tokens the forward took 791 us so, 862 with 32 channels, 1237 with 8 warps (H200).
    warps, channels = (8, 32) if _is_wide(problem) else (4, 64)
    return {
        "chunk": _chunk(problem),
        "prepare_warps": warps,
        "prepare_channels": min(channels, padded(problem.head_dim)),
    }


def _walk(problem: Recurrent, device: Device, walks: int, most: int, crowded_stages: int) -> dict[str, Any]:
    """The knobs of walks: few columns where walks are few, and tiles in flight where each has a multiprocessor.

    Of 32 heads and 8192 tokens the forward took 848 us so; 1196 with 16 columns and two stages (H200).

    Args:
      walks: how many there are.
      most: columns of a walk at most.
      crowded_stages: stages where a multiprocessor has several walks.
    """
    units, columns = device.units or _UNITS, problem.v_head_dim
    block_v = min(most, padded(columns))
    while block_v > 16 and 2 * walks * -(-columns // block_v) <= units:
        block_v //= 2
    is_alone = walks * -(-columns // block_v) <= units and shared_limit(device) >= _THREE_STAGES
    stages = 1 if _is_wide(problem) else 3 if is_alone else crowded_stages
    return {"block_v": block_v, "num_warps": 4, "num_stages": stages}


def _is_wide(problem: Recurrent) -> bool:
    return padded(problem.head_dim) > 128 or problem.dtype == "float32"


def _chunk(problem: Recurrent) -> int:
    """Products of float32 lose less in short chunks."""
    return 16 if problem.dtype == "float32" else min(64, padded(max(problem.lengths)))


def _chunks(problem: Recurrent) -> tuple[int, ...]:
    if problem.dtype == "float32":
        return (16, 32)
    most = padded(max(problem.lengths))
    return tuple(size for size in (16, 32, 64) if size <= most and size >= min(most, 32))


def _tiles(knob: str, width: int) -> tuple[int, ...]:
    return tuple(size for size in tried(ChannelChunks, knob) if size <= padded(width)) or (padded(width),)


def _most_segments(problem: Recurrent, chunk: int) -> int:
    return max(1, max(problem.lengths) // chunk)
