"""The configs worth trying, and the place among untuned kernels."""

import dataclasses
from collections.abc import Iterator

from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.gluon.latents import KEYS, ROWS
from attn_tune.kernels.lang.space import nearest_feasible
from attn_tune.kernels.sparse_mla.triton_hopper.config import Config
from attn_tune.kernels.sparse_mla.triton_hopper.limits import infeasible
from attn_tune.ops.sparse_mla.problem import Problem
from attn_tune.schema.device import Device

# Multiprocessors of a device that does not say.
_UNITS = 132
# A tile of 64 rows with few heads takes longer than the kernel without groups of warps, of 16 heads 1.5 times (H100).
# Of 64 and more it is faster, shared indices among them (H200, 128 heads: one query 15.0 us against 20.4, 32 of them
# 54 against 133; 64 heads, one query 14.1 against 18.9).
_BEHIND, _BEFORE = 5, 20


def place(problem: Problem, direction: str, device: Device) -> int:
    """The place in the untuned order."""
    del direction, device
    return _BEFORE if problem.num_q_heads > ROWS // 2 else _BEHIND


def heuristic(problem: Problem, device: Device) -> Config:
    """The untuned config: indices shared until each multiprocessor has a program."""
    return Config(splits=_splits(problem, device))


def adapt(tuned: Problem, problem: Problem, device: Device, config: Config) -> Config:
    """The config of ``tuned`` for ``problem``: as many splits as untuned."""
    return dataclasses.replace(config, splits=_splits(problem, device))


def candidates(problem: Problem, device: Device) -> tuple[Config, ...]:
    """All stages that fit, with splits about those of the untuned choice."""
    return nearest_feasible(
        heuristic(problem, device),
        _all(problem, device),
        lambda config: infeasible(problem, device, config),
        doubling=("splits",),
    )


def _all(problem: Problem, device: Device) -> Iterator[Config]:
    splits = _splits(problem, device)
    for stages in tried(Config, "num_stages"):
        for some in sorted({max(1, splits // 2), splits, 2 * splits if splits > 1 else 1}):
            if some in tried(Config, "splits"):
                for halves in tried(Config, "halves_ahead"):
                    yield Config(num_stages=stages, splits=some, halves_ahead=halves)


def _splits(problem: Problem, device: Device) -> int:
    """The least power of two that gives each multiprocessor a program, as long as each has some tiles of keys."""
    programs = problem.batch * problem.q_len * -(-problem.num_q_heads // ROWS)
    splits = 1
    while splits < 32 and 2 * splits * programs <= (device.units or _UNITS) * 1.1:
        if problem.num_selected < 4 * splits * KEYS:
            break
        splits *= 2
    return splits
