"""The configs worth trying, nearest to the untuned choice first."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator

from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.pallas_tpu.memory import limit_for
from attn_tune.kernels.lang.space import first_feasible, nearest_feasible
from attn_tune.kernels.paged_decode.pallas_tpu_paged.config import Config
from attn_tune.kernels.paged_decode.pallas_tpu_paged.limits import infeasible, vmem_bytes
from attn_tune.kernels.paged_decode.pallas_tpu_paged.width import table_width
from attn_tune.ops.paged_decode.problem import Problem
from attn_tune.schema.device import Device

# Keys of an untuned block. Predictions for v6e are best at four times as many, which short sequences would not fill.
_KEYS = 2048


def heuristic(problem: Problem, device: Device) -> Config:
    """The untuned config: about two thousand keys a block, or as many as there are, on one core."""
    p = problem
    width = table_width(p.input_width, p.page_size, p.window)
    pages = min(max(1, _KEYS // p.page_size), width)
    sizes = (1 << n for n in range(pages.bit_length() - 1, -1, -1))
    # Two cores are left to a sweep: the library says that its kernel may hang where they are not one device.
    configs = (_limited(p, device, Config(pages_per_compute_block=n)) for n in sizes)
    return first_feasible(configs, functools.partial(infeasible, p, device))


def adapt(tuned: Problem, problem: Problem, device: Device, config: Config) -> Config:
    """The config with no more pages a block than a sequence has, and the limit that it needs."""
    width = table_width(problem.input_width, problem.page_size, problem.window)
    pages = min(config.pages_per_compute_block, 1 << (width.bit_length() - 1))
    return _limited(problem, device, dataclasses.replace(config, pages_per_compute_block=pages))


def candidates(problem: Problem, device: Device) -> tuple[Config, ...]:
    """Blocks of all sizes, either loop, and what cores may share."""
    start, reason = heuristic(problem, device), functools.partial(infeasible, problem, device)
    return nearest_feasible(start, _all(problem, device), reason, doubling=("pages_per_compute_block",))


def _all(problem: Problem, device: Device) -> Iterator[Config]:
    modes = (None, *tried(Config, "megacore_mode")) if device.units >= 2 else (None,)
    sizes, loops = tried(Config, "pages_per_compute_block"), tried(Config, "inline_seq_dim")
    for pages, inline, mode in itertools.product(sizes, loops, modes):
        config = Config(pages_per_compute_block=pages, inline_seq_dim=inline, megacore_mode=mode)
        yield _limited(problem, device, config)


def _limited(problem: Problem, device: Device, config: Config) -> Config:
    limit = limit_for(device, vmem_bytes(problem, config))
    return dataclasses.replace(config, vmem_limit_kib=limit)
