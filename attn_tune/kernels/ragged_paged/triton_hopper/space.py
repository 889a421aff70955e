"""The configs worth trying, nearest to the untuned choice first."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator

from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.space import first_feasible, nearest_feasible
from attn_tune.kernels.ragged_paged._triton.space import adapted_programs, other_decoding, with_decoding
from attn_tune.kernels.ragged_paged.triton_hopper.config import ROWS, Config
from attn_tune.kernels.ragged_paged.triton_hopper.limits import infeasible
from attn_tune.ops.ragged_paged.problem import Problem
from attn_tune.schema.device import Device

# Multiprocessors of a device that does not say.
_UNITS = 132
# Keys and values of the heads that are worked on together: half of the L2 cache of an H100, as in flash_attention.
_SECTION_BYTES = 16 * 2**20
# Places in the untuned order: before and behind ``triton``, which has 10; and the heads that are first.
_FIRST, _LAST = 20, 5
_PROVEN_WIDTH = 128


def heuristic(problem: Problem, device: Device) -> Config:
    """The untuned config: the largest tile of keys that fits, and a launch that decodes where sequences do."""
    section = _nearest_section(problem, _wanted_heads(problem))
    rows = _most_rows(problem)
    start = Config(
        block_k=128,
        num_stages=2,
        num_programs=_units(device),
        heads_per_section=section,
        consumers=1 if rows <= ROWS else 2,
        # With 24 the warp that copies spills: 1.01 times as fast on an H200, page 64, and more copies need more.
        copying_registers=40,
    )
    # With wide values beside warps that widen codes one group multiplies.
    smaller = (
        dataclasses.replace(start, block_k=keys, consumers=groups)
        for groups in sorted({start.consumers, 1}, reverse=True)
        for keys in (128, 64, 32)
    )
    tile = first_feasible(smaller, functools.partial(infeasible, problem, device))
    return with_decoding(problem, device, tile)


def adapt(tuned: Problem, problem: Problem, device: Device, config: Config) -> Config:
    """The config of ``tuned`` for ``problem``: its section, against the untuned one, and all multiprocessors."""
    more = _wanted_heads(problem) / _wanted_heads(tuned)
    each = max(1, config.num_programs // _units(device))
    return dataclasses.replace(
        config,
        heads_per_section=_nearest_section(problem, config.heads_per_section * more),
        num_programs=each * _units(device),
        decode_programs=adapted_programs(tuned, problem, config),
    )


def candidates(problem: Problem, device: Device) -> tuple[Config, ...]:
    """Tiles with the untuned launch that decodes, and others of it with the untuned tile."""
    start = heuristic(problem, device)
    return nearest_feasible(
        start,
        _all(problem, device, start),
        functools.partial(infeasible, problem, device),
        doubling=("block_k", "num_stages", "num_programs", "heads_per_section", "consumers", "decode_block_k"),
    )


def _all(problem: Problem, device: Device, start: Config) -> Iterator[Config]:
    near = (start.heads_per_section / 2, start.heads_per_section, start.heads_per_section * 2)
    sections = [n for n in _divisors(problem) if n in near]
    names = ("block_k", "num_stages", "consumers", "copying_registers")
    for block_k, stages, consumers, copying in itertools.product(*(tried(Config, name) for name in names)):
        for section, turns in itertools.product(sections, (False, True) if consumers == 2 else (False,)):
            # Two programs fit a multiprocessor where each has one group of warps that multiplies.
            for each in (1, 2) if consumers == 1 else (1,):
                yield dataclasses.replace(
                    start,
                    block_k=block_k,
                    num_stages=stages,
                    consumers=consumers,
                    copying_registers=copying,
                    heads_per_section=section,
                    ping_pong=turns,
                    num_programs=each * _units(device),
                )
    yield from other_decoding(problem, device, start)


def place(problem: Problem, direction: str, device: Device) -> int:
    """The place in the untuned order: first where it was proven and timed on Hopper, else behind ``triton``.

    That is 128-wide heads in the layout ``nhd``, of 16 bits or codes, where a sequence fills the rows of one group of
    warps. Other widths and layouts are proven by a sweep before they answer.
    """
    del direction, device  # a forward only, and other devices are refused
    is_known = problem.head_dim == problem.v_head_dim == _PROVEN_WIDTH and problem.layout == "nhd"
    return _FIRST if is_known and _most_rows(problem) >= ROWS else _LAST


def _most_rows(problem: Problem) -> int:
    """The rows of a key head of the sequence with most new tokens."""
    return max(new for new, _ in problem.sequences) * problem.group_size


def _units(device: Device) -> int:
    return device.units or _UNITS


def _wanted_heads(problem: Problem) -> float:
    """Key heads whose keys and values stay in the L2 cache."""
    keys = sum(length for new, length in problem.sequences if new) or 1
    return min(problem.num_kv_heads, max(1.0, _SECTION_BYTES / (2 * keys * (problem.head_dim + problem.v_head_dim))))


def _nearest_section(problem: Problem, wanted: float) -> int:
    """The divisor of the key heads next to what is wanted."""
    return min(_divisors(problem), key=lambda n: (abs(n - wanted), n))


def _divisors(problem: Problem) -> list[int]:
    heads = problem.num_kv_heads
    return [n for n in range(1, heads + 1) if heads % n == 0]
