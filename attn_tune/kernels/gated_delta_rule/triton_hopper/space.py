"""The untuned config, and the configs worth trying."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator

from attn_tune.kernels.gated_delta_rule.triton_hopper.config import Config
from attn_tune.kernels.gated_delta_rule.triton_hopper.limits import infeasible
from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.gluon.chunks import CHUNK
from attn_tune.kernels.lang.gluon.chunks.space import groups_of, place, programs
from attn_tune.kernels.lang.space import first_feasible, nearest_feasible
from attn_tune.ops.gated_delta_rule.problem import Problem
from attn_tune.schema.device import Device

__all__ = ["adapt", "candidates", "heuristic", "place"]

# Multiprocessors of a device that does not say.
_UNITS = 132
# Segments make twice the work and two more launches, and are worth it from so many chunks on.
_LONG, _MOST_SEGMENTS = 256, 16


def heuristic(problem: Problem, device: Device) -> Config:
    """The untuned config: groups that make the fewest turns of multiprocessors, and segments where these are idle."""
    groups, segments = groups_of(problem, device), 1
    if max(problem.lengths) >= _LONG * CHUNK:
        while segments < _MOST_SEGMENTS and 2 * segments * programs(problem, groups) <= (device.units or _UNITS):
            segments *= 2
    choices = itertools.product((groups, 1), (3, 2, 1))
    return first_feasible(
        (Config(groups=count, num_stages=stages, segments=segments) for count, stages in choices),
        functools.partial(infeasible, problem, device),
    )


def candidates(problem: Problem, device: Device) -> tuple[Config, ...]:
    """Walks with the untuned launch that prepares chunks, and others of it with the untuned walk."""
    return nearest_feasible(
        heuristic(problem, device),
        _all(problem, device),
        functools.partial(infeasible, problem, device),
        doubling=("prepare_warps", "groups", "num_stages", "segments"),
    )


def adapt(tuned: Problem, problem: Problem, device: Device, config: Config) -> Config:
    """The config of another number of tokens, sequences or heads, with no segment without a chunk."""
    del tuned, device
    return dataclasses.replace(config, segments=min(config.segments, _most_segments(problem)))


def _all(problem: Problem, device: Device) -> Iterator[Config]:
    start = heuristic(problem, device)
    for warps, most in itertools.product(tried(Config, "prepare_warps"), (None, *tried(Config, "prepare_registers"))):
        yield dataclasses.replace(start, prepare_warps=warps, prepare_registers=most)
    walks = problem.batch * problem.num_value_heads
    for groups, stages, segments in itertools.product(
        *(tried(Config, name) for name in ("groups", "num_stages", "segments"))
    ):
        is_useful = segments * 4 <= _most_segments(problem) and walks * segments <= 4 * (device.units or _UNITS)
        if segments == 1 or is_useful:
            yield dataclasses.replace(start, groups=groups, num_stages=stages, segments=segments)


def _most_segments(problem: Problem) -> int:
    return max(1, max(problem.lengths) // CHUNK)
