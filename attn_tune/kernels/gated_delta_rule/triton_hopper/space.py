"""The untuned config, and the configs worth trying."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator

from attn_tune.kernels.gated_delta_rule.triton_hopper.config import BackwardConfig, Config
from attn_tune.kernels.gated_delta_rule.triton_hopper.limits import infeasible, infeasible_backward
from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.gluon.chunks import CHUNK
from attn_tune.kernels.lang.gluon.chunks.space import adapt, groups_of, most_segments, place, programs, units_of
from attn_tune.kernels.lang.space import first_feasible, nearest_feasible
from attn_tune.ops.gated_delta_rule.problem import Problem
from attn_tune.schema.device import Device

__all__ = ["adapt", "adapt_backward", "backward_candidates", "backward_heuristic", "candidates", "heuristic", "place"]

# Microseconds of a chunk of a walk. Segments are walked twice, in fewer times as long, and two more launches take so
# many, and so many for each segment (H200: 2/8 heads, 32768 tokens, by 1, 2, 4 and 8 segments; 16/32 heads, 8192 and
# 32768 tokens, by 1 and 2).
_OF_CHUNK, _TWICE, _OF_LAUNCHES, _OF_SEGMENT = 1.2, 1.67, 22.0, 2.0


def heuristic(problem: Problem, device: Device) -> Config:
    """The untuned config: groups that make the fewest turns of multiprocessors, and segments where these are idle."""
    groups = groups_of(problem, device)
    most = units_of(device) // programs(problem, groups)
    possible = (1,) if problem.ragged else (n for n in tried(Config, "segments") if n <= max(1, most))
    segments = min(possible, key=functools.partial(_microseconds, max(problem.lengths)))
    choices = itertools.product((groups, 1), (3, 2, 1))
    return first_feasible(
        (Config(groups=count, num_stages=stages, segments=segments) for count, stages in choices),
        functools.partial(infeasible, problem, device),
    )


def _microseconds(length: int, segments: int) -> float:
    """The time of walks of so many segments that run at one time."""
    chunks = -(-length // (CHUNK * segments))
    more = _OF_LAUNCHES + _OF_SEGMENT * segments if segments > 1 else 0.0
    return chunks * _OF_CHUNK * (_TWICE if segments > 1 else 1) + more


def candidates(problem: Problem, device: Device) -> tuple[Config, ...]:
    """Walks with the untuned launch that prepares chunks, and others of it with the untuned walk."""
    return nearest_feasible(
        heuristic(problem, device),
        _all(problem, device),
        functools.partial(infeasible, problem, device),
        doubling=("prepare_warps", "groups", "num_stages", "segments"),
    )


def _all(problem: Problem, device: Device) -> Iterator[Config]:
    start = heuristic(problem, device)
    for warps, most in itertools.product(tried(Config, "prepare_warps"), (None, *tried(Config, "prepare_registers"))):
        yield dataclasses.replace(start, prepare_warps=warps, prepare_registers=most)
    walks = problem.batch * problem.num_value_heads
    for groups, stages, segments in itertools.product(
        *(tried(Config, name) for name in ("groups", "num_stages", "segments"))
    ):
        is_useful = segments * 4 <= most_segments(problem) and walks * segments <= 4 * units_of(device)
        if segments == 1 or is_useful:
            yield dataclasses.replace(start, groups=groups, num_stages=stages, segments=segments)


def backward_heuristic(problem: Problem, device: Device) -> BackwardConfig:
    """The backward's untuned config: all the stages that fit, and a program of gradients a multiprocessor."""
    # Registers of the launch that prepares chunks: 10 % off it on an H200 (16/32 heads, 8192 tokens).
    most = 168 if problem.head_dim > 64 else None
    choices = ((2, 3), (2, 2), (1, 1))
    return first_feasible(
        (
            BackwardConfig(
                prepare_registers=most,
                num_stages=walk,
                gradient_stages=gradients,
                gradient_programs=_programs(problem, device),
            )
            for walk, gradients in choices
        ),
        functools.partial(infeasible_backward, problem, device),
    )


def backward_candidates(problem: Problem, device: Device) -> tuple[BackwardConfig, ...]:
    """Each launch by itself with the others as in the untuned config."""
    return nearest_feasible(
        backward_heuristic(problem, device),
        _backwards(problem, device),
        functools.partial(infeasible_backward, problem, device),
        doubling=("prepare_warps", "num_stages", "gradient_stages"),
    )


def adapt_backward(tuned: Problem, problem: Problem, device: Device, config: BackwardConfig) -> BackwardConfig:
    """The config of another number of tokens, sequences or heads: with the programs that are untuned there."""
    del tuned
    return dataclasses.replace(config, gradient_programs=_programs(problem, device))


def _backwards(problem: Problem, device: Device) -> Iterator[BackwardConfig]:
    start = backward_heuristic(problem, device)
    names = ("prepare_warps", "num_stages", "gradient_stages")
    warps, walks, gradients = (tried(BackwardConfig, name) for name in names)
    for count, most in itertools.product(warps, (None, *tried(BackwardConfig, "prepare_registers"))):
        yield dataclasses.replace(start, prepare_warps=count, prepare_registers=most)
    for walk, stages in itertools.product((1, *walks), gradients):
        yield dataclasses.replace(start, num_stages=walk, gradient_stages=stages)


def _programs(problem: Problem, device: Device) -> int:
    """A program a multiprocessor, and no more than there are chunks to differentiate."""
    chunks = sum(-(-length // CHUNK) for length in problem.lengths)
    return max(1, min(units_of(device), chunks * problem.num_key_heads))
