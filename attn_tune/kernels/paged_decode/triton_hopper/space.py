"""The configs worth trying, nearest to the untuned choice first."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator

from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.gluon.latents import KEYS, ROWS
from attn_tune.kernels.lang.space import nearest_feasible
from attn_tune.kernels.paged_decode._triton.config import MOST_PROGRAMS
from attn_tune.kernels.paged_decode.triton_hopper.config import Config
from attn_tune.kernels.paged_decode.triton_hopper.limits import infeasible
from attn_tune.ops.paged_decode.problem import Problem, visible_keys
from attn_tune.schema.device import Device

# Places in the untuned order: before ``triton``, and behind it.
_FIRST, _LAST = 20, 5
# Blocks of keys for each multiprocessor below which ``triton`` is faster, whose clusters need no second launch (H100:
# 64 blocks 13.4 us against 16.1, 1024 blocks 113 us against 57).
_FEWEST_BLOCKS = 1
# Multiprocessors of a device that does not say. A program's slots fill the shared memory of one.
_UNITS = 132
_STAGES = 2
# One of so many multiprocessors may idle where that saves the cuts of sequences.
_SPARED = 16


def place(problem: Problem, direction: str, device: Device) -> int:
    """The place in the untuned order: first where every multiprocessor has a block of keys."""
    del direction  # a forward only
    return _FIRST if _blocks(problem) * tiles(problem) >= _FEWEST_BLOCKS * _units(device) else _LAST


def heuristic(problem: Problem, device: Device) -> Config:
    """The untuned config: a program for each multiprocessor, or a few less where no sequence is cut then."""
    return Config(num_programs=_uncut(problem, _programs(problem, device)), num_stages=_STAGES)


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
    most = _programs(problem, device)
    programs = sorted({most, _uncut(problem, most)})
    knobs = (tried(Config, name) for name in ("num_stages", "least_blocks", "halves_ahead"))
    for count, stages, least, halves in itertools.product(programs, *knobs):
        yield Config(num_programs=count, num_stages=stages, least_blocks=least, halves_ahead=halves)


def _programs(problem: Problem, device: Device) -> int:
    """The programs of a tile of rows that give each multiprocessor one, and each of them a block of keys."""
    return max(1, min(_units(device) // tiles(problem), _blocks(problem), MOST_PROGRAMS))


def _uncut(problem: Problem, programs: int) -> int:
    """``programs``, or up to a sixteenth less: the most that share sequences of one length without a cut."""
    if problem.workload != "eq":
        return programs
    least = programs - programs // _SPARED
    return next((n for n in range(programs, least - 1, -1) if problem.batch % n == 0), programs)


def _blocks(problem: Problem) -> int:
    """Blocks of keys of all sequences."""
    return sum(-(-visible_keys(problem, length) // KEYS) for length in problem.lengths)


def _units(device: Device) -> int:
    return device.units or _UNITS


def tiles(problem: Problem) -> int:
    """Tiles of rows that walk the same keys."""
    return -(-problem.q_len * problem.num_q_heads // ROWS)
