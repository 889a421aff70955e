"""The configs worth trying, nearest to the untuned choice first."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator

from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.space import nearest_feasible
from attn_tune.kernels.paged_decode._triton.config import MOST_PROGRAMS
from attn_tune.kernels.paged_decode.triton_hopper.config import KEYS, ROWS, Config
from attn_tune.kernels.paged_decode.triton_hopper.limits import infeasible
from attn_tune.ops.paged_decode.problem import Problem, visible_keys
from attn_tune.schema.device import Device

# Behind all others until an H100 or H200 has proven it.
_LAST = -2
# Multiprocessors of a device that does not say. A program's slots fill the shared memory of one.
_UNITS = 132
_STAGES = 2


def place(problem: Problem, direction: str, device: Device) -> int:
    """The place in the untuned order."""
    del problem, direction, device
    return _LAST


def heuristic(problem: Problem, device: Device) -> Config:
    """The untuned config: a program for each multiprocessor."""
    return Config(num_programs=_programs(problem, device, 1), num_stages=_STAGES)


def adapt(tuned: Problem, problem: Problem, device: Device, config: Config) -> Config:
    """The config of ``tuned`` for ``problem``: as many programs a multiprocessor as there."""
    wanted = round(config.num_programs * tiles(tuned) / tiles(problem))
    return dataclasses.replace(config, num_programs=min(MOST_PROGRAMS, max(1, wanted)))


def candidates(problem: Problem, device: Device) -> tuple[Config, ...]:
    """Stages, programs a multiprocessor and least blocks."""
    return nearest_feasible(
        heuristic(problem, device),
        _all(problem, device),
        functools.partial(infeasible, problem, device),
        doubling=("num_stages", "num_programs", "least_blocks"),
    )


def _all(problem: Problem, device: Device) -> Iterator[Config]:
    programs = sorted({_programs(problem, device, each) for each in (1, 2)})
    for stages, count, least in itertools.product(tried(Config, "num_stages"), programs, tried(Config, "least_blocks")):
        yield Config(num_programs=count, num_stages=stages, least_blocks=least)


def _programs(problem: Problem, device: Device, each: int) -> int:
    """The programs of a tile of rows that give each multiprocessor ``each``, and each of them a block of keys."""
    most = sum(-(-visible_keys(problem, length) // KEYS) for length in problem.lengths)
    return max(1, min(each * (device.units or _UNITS) // tiles(problem), most, MOST_PROGRAMS))


def tiles(problem: Problem) -> int:
    """Tiles of rows that walk the same keys."""
    return -(-problem.q_len * problem.num_q_heads // ROWS)
