"""The configs worth trying, nearest to the untuned choice first."""

import dataclasses
import itertools
from collections.abc import Iterator

from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.flash_attention.triton_hopper.config import BLOCK_Q, ForwardConfig
from attn_tune.kernels.flash_attention.triton_hopper.limits import infeasible, units
from attn_tune.schema.device import Device

_SECTIONS = (4, 8, 16, 32, 64, 128)
# Untuned: keys of a tile, stages by head dim.
_UNTUNED = {64: (128, 4), 128: (128, 2), 256: (64, 2)}
_UNTUNED_SECTION = 16


def heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """The untuned config: the largest tile of keys whose logits and weights fit the registers."""
    block_k, stages = _UNTUNED.get(problem.head_dim, (64, 2))
    return ForwardConfig(
        block_k=block_k,
        num_stages=stages,
        heads_per_section=_nearest_section(problem),
        num_programs=_programs(problem, device),
    )


def candidates(problem: Problem, device: Device) -> tuple[ForwardConfig, ...]:
    """Tiles, stages and sections."""
    start = heuristic(problem, device)
    feasible = (c for c in _all(problem, start) if infeasible(problem, device, c) is None)
    others = sorted(set(feasible) - {start}, key=lambda c: (_distance(start, c), str(c)))
    return (start, *others)


def sections(problem: Problem) -> tuple[int, ...]:
    """How many batch-heads may be worked on together: whole groups, a divisor of their number; all of them last."""
    heads = problem.batch * problem.num_q_heads
    fit = (n for n in _SECTIONS if n < heads and heads % n == 0 and n % problem.group_size == 0)
    return (*fit, heads)


def _all(problem: Problem, start: ForwardConfig) -> Iterator[ForwardConfig]:
    for block_k, stages, section in itertools.product((32, 64, 128), (2, 3, 4), sections(problem)):
        yield dataclasses.replace(
            start, block_k=block_k, num_stages=stages, heads_per_section=section
        )


def _nearest_section(problem: Problem) -> int:
    return min(sections(problem), key=lambda n: abs(n - _UNTUNED_SECTION))


def _programs(problem: Problem, device: Device) -> int:
    tiles = problem.batch * problem.num_q_heads * -(-problem.q_len // BLOCK_Q)
    return min(tiles, units(device))


def _distance(start: ForwardConfig, other: ForwardConfig) -> float:
    """Doublings of the knobs."""
    import math

    names = ("block_k", "num_stages", "heads_per_section")
    return sum(abs(math.log2(getattr(other, n) / getattr(start, n))) for n in names)
