"""The untuned config, and the configs worth trying."""

import functools
import itertools
from collections.abc import Iterator

from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.gluon.chunks import CHUNK
from attn_tune.kernels.lang.gluon.chunks.space import adapt, groups_of, most_segments, place, programs, units_of
from attn_tune.kernels.lang.space import first_feasible, nearest_feasible
from attn_tune.kernels.linear_attention.triton_hopper.config import Config
from attn_tune.kernels.linear_attention.triton_hopper.limits import infeasible
from attn_tune.ops.linear_attention.problem import Problem
from attn_tune.schema.device import Device

__all__ = ["adapt", "candidates", "heuristic", "place"]

# A segment has so many chunks at least, and there are so many segments at most, in the untuned choice.
_SHORTEST, _MOST_SEGMENTS = 8, 16


def heuristic(problem: Problem, device: Device) -> Config:
    """The untuned config: groups that make the fewest turns of multiprocessors, and segments where these are idle."""
    groups, segments = groups_of(problem, device), 1
    while segments < _MOST_SEGMENTS and 2 * segments * programs(problem, groups) <= units_of(device):
        if problem.ragged or max(problem.lengths) < 2 * segments * _SHORTEST * CHUNK:
            break
        segments *= 2
    choices = itertools.product((groups, 1), (3, 2, 1))
    return first_feasible(
        (Config(groups=count, num_stages=stages, segments=segments) for count, stages in choices),
        functools.partial(infeasible, problem, device),
    )


def candidates(problem: Problem, device: Device) -> tuple[Config, ...]:
    """Groups, stages and segments."""
    return nearest_feasible(
        heuristic(problem, device),
        _all(problem, device),
        functools.partial(infeasible, problem, device),
        doubling=("groups", "num_stages", "segments"),
    )


def _all(problem: Problem, device: Device) -> Iterator[Config]:
    knobs = (tried(Config, name) for name in ("groups", "num_stages", "segments"))
    walks = problem.batch * problem.num_value_heads
    for groups, stages, segments in itertools.product(*knobs):
        is_useful = segments * 4 <= most_segments(problem) and walks * segments <= 8 * units_of(device)
        if segments == 1 or is_useful:
            yield Config(groups=groups, num_stages=stages, segments=segments)
