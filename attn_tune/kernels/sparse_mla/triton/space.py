"""The configs worth trying, nearest to the untuned choice first."""

import dataclasses
import itertools
from collections.abc import Iterator

from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.space import nearest_feasible
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.sparse_mla.triton.config import Config
from attn_tune.kernels.sparse_mla.triton.limits import fits, infeasible
from attn_tune.ops.sparse_mla.problem import Problem
from attn_tune.schema.device import Device

# Multiprocessors of a device that does not say.
_UNITS = 132


def heuristic(problem: Problem, device: Device) -> Config:
    """The untuned config: one tile for at most 64 heads, indices shared until each multiprocessor has a program."""
    # Products of float32 need so many registers that they are spilled, least by these.
    is_wide = problem.dtype == "float32"
    block_n = min(32 if is_wide else 64, padded(problem.num_q_heads))
    block_k = min(32 if is_wide else 64, padded(problem.num_selected))
    config = Config(block_n=block_n, block_k=block_k, num_warps=8 if is_wide or block_n > 16 else 4, num_stages=2)
    while not fits(problem, device, config) and (less := _smaller(config)) != config:
        config = less
    return dataclasses.replace(config, splits=_splits(problem, device, config))


def adapt(tuned: Problem, problem: Problem, device: Device, config: Config) -> Config:
    """The config of ``tuned`` for ``problem``: tiles no larger than its heads and indices, and splits as untuned."""
    config = dataclasses.replace(
        config,
        block_n=min(config.block_n, padded(problem.num_q_heads)),
        block_k=min(config.block_k, padded(problem.num_selected)),
    )
    return dataclasses.replace(config, splits=_splits(problem, device, config))


def candidates(problem: Problem, device: Device) -> tuple[Config, ...]:
    """Tiles of all heads or of fewer, with splits about those of the untuned choice."""
    start = heuristic(problem, device)
    return nearest_feasible(
        start,
        _all(problem, device),
        lambda config: infeasible(problem, device, config),
        doubling=("block_n", "block_k", "num_warps", "splits"),
    )


def _all(problem: Problem, device: Device) -> Iterator[Config]:
    heads, keys = padded(problem.num_q_heads), padded(problem.num_selected)
    for block_n, block_k, warps, stages in itertools.product(
        *(tried(Config, name) for name in ("block_n", "block_k", "num_warps", "num_stages"))
    ):
        if block_n > heads or block_n < min(32, heads) or block_k > keys or warps * 16 > 4 * block_n:
            continue
        config = Config(block_n=block_n, block_k=block_k, num_warps=warps, num_stages=stages)
        splits = _splits(problem, device, config)
        for some in sorted({max(1, splits // 2), splits, 2 * splits if splits > 1 else 1}):
            if some in tried(Config, "splits"):
                yield dataclasses.replace(config, splits=some)


def _smaller(config: Config) -> Config:
    """``config`` with half of its keys, or of its heads once the keys are the fewest."""
    name = "block_k" if config.block_k > 16 else "block_n"
    return dataclasses.replace(config, **{name: max(16, getattr(config, name) // 2)})


def _splits(problem: Problem, device: Device, config: Config) -> int:
    """The least power of two that gives each multiprocessor a program, as long as each has some blocks of keys."""
    programs = problem.batch * problem.q_len * -(-problem.num_q_heads // config.block_n)
    splits = 1
    while splits < 32 and 2 * splits * programs <= (device.units or _UNITS) * 1.1:
        if problem.num_selected < 4 * splits * config.block_k:
            break
        splits *= 2
    return splits
