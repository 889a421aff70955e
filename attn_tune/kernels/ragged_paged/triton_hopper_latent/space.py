"""Problems and devices that the kernel does not support, and the configs worth trying."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any, cast

from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.space import nearest_feasible
from attn_tune.kernels.paged_decode._triton.config import MOST_PROGRAMS
from attn_tune.kernels.paged_decode.triton_hopper import limits
from attn_tune.kernels.paged_decode.triton_hopper.config import KEYS, ROWS, Config
from attn_tune.ops.paged_decode.problem import MOST_QUERIES
from attn_tune.ops.ragged_paged.problem import Problem
from attn_tune.schema.device import Device

# Places in the untuned order: before ``triton_latent``, which has 10, and behind it.
_FIRST, _LAST = 20, 5
# Rows of a tile of 64 that are used, at least, to be before it.
_FEWEST_ROWS = 32
# Multiprocessors of a device that does not say. A program's slots fill the shared memory of one.
_UNITS = 132


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device, or None."""
    # Both problems have the fields of a cache and its heads, which decide.
    if reason := limits.unsupported(cast(Any, problem), direction, device):
        return reason
    return None if problem.page_size else "it copies the page table for each query; page=0 is a contiguous cache"


def infeasible(problem: Problem, device: Device, config: Config) -> str | None:
    """The reason that a config cannot run on the device, or None. Never refuses what compiles and fits."""
    return limits.infeasible(cast(Any, problem), device, config)


def queries_of(problem: Problem) -> int:
    """The queries of a sequence that are decoded together: as many as fill a tile of 64 rows.

    Of a call that is not causal a query sees all keys, where the new tokens of decoding see those up to their own. With
    a window those before the first query of a sequence would read keys that no query sees, which may be NaN.
    """
    is_together = problem.causal and problem.window is None
    return max(1, min(ROWS // problem.num_q_heads, MOST_QUERIES)) if is_together else 1


def place(problem: Problem, direction: str, device: Device) -> int:
    """The place in the untuned order: first where tiles are half full, and every multiprocessor has a block of keys."""
    del direction  # a forward only
    queries = queries_of(problem)
    blocks = sum(-(-new // queries) * -(-length // KEYS) for new, length in problem.sequences)
    is_filled = queries * problem.num_q_heads >= _FEWEST_ROWS
    return _FIRST if is_filled and blocks * _tiles(problem) >= _units(device) else _LAST


def heuristic(problem: Problem, device: Device) -> Config:
    """The untuned config: a program for each multiprocessor."""
    return Config(num_programs=max(1, _units(device) // _tiles(problem)), num_stages=2)


def adapt(tuned: Problem, problem: Problem, device: Device, config: Config) -> Config:
    """The config of ``tuned`` for ``problem``: as many programs a multiprocessor as there."""
    wanted = round(config.num_programs * _tiles(tuned) / _tiles(problem))
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
    most = heuristic(problem, device).num_programs
    numbers = tried(Config, "num_stages"), tried(Config, "least_blocks"), (1, 2)
    for stages, least, each in itertools.product(*numbers):
        yield Config(num_programs=min(each * most, MOST_PROGRAMS), num_stages=stages, least_blocks=least)


def _tiles(problem: Problem) -> int:
    """Tiles of rows that walk the same keys."""
    return -(-queries_of(problem) * problem.num_q_heads // ROWS)


def _units(device: Device) -> int:
    return device.units or _UNITS
