"""The configs worth trying, nearest to the untuned choice first."""

import dataclasses
import itertools
import math
from collections.abc import Iterator

from attn_tune.kernels.block_sparse_attention.triton_hopper.limits import UNITS, infeasible, masked
from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.gluon.attention.config import BLOCK_Q, ForwardConfig
from attn_tune.kernels.lang.gluon.attention.plan import num_tiles, overlaps
from attn_tune.kernels.lang.space import nearest_feasible
from attn_tune.ops.block_sparse_attention.problem import Problem
from attn_tune.schema.device import Device

# Keys and values of the heads that are worked on together: a third of the L2 cache of an H100 or H200.
_SECTION_BYTES = 16 * 2**20
# Tiles of 128 rows by 64 keys or more took 0.67 to 1.03 of the time of `triton` on an H200; less was not timed.
_BEHIND, _BEFORE = 5, 20
_FEWEST_KEYS = 64


def place(problem: Problem, direction: str, device: Device) -> int:
    """The place in the untuned order."""
    is_known = problem.q_len >= BLOCK_Q and problem.mask_block_k >= _FEWEST_KEYS
    return _BEFORE if is_known else _BEHIND


def heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """The untuned config: the longest tiles of keys, as many stages as leave room for the next queries.

    Products without turns: those with took up to 3 % longer of listed tiles on an H200, and never less beyond noise.
    """
    p = masked(problem)
    config = ForwardConfig(
        block_k=min(128, p.mask_block_k),
        num_stages=2,
        heads_per_section=_section(p),
        num_programs=min(num_tiles(p), device.units or UNITS),
    )
    return next(more for stages in (4, 3, 2) if overlaps(p, more := dataclasses.replace(config, num_stages=stages)))


def adapt(tuned: Problem, problem: Problem, device: Device, config: ForwardConfig) -> ForwardConfig:
    """The config of ``tuned`` for ``problem``: its section, against the untuned one, and all multiprocessors."""
    more = _section(problem) / _section(tuned)
    return dataclasses.replace(
        config,
        block_k=min(config.block_k, problem.mask_block_k),
        heads_per_section=_nearest_section(problem, config.heads_per_section * more),
        num_programs=min(num_tiles(problem), device.units or UNITS),
    )


def candidates(problem: Problem, device: Device) -> tuple[ForwardConfig, ...]:
    """Tiles of keys, stages, sections of a fourth to eight times the heads, with and without turns and fast tanh."""
    start = heuristic(problem, device)
    return nearest_feasible(
        start,
        _all(problem, start),
        lambda config: infeasible(problem, device, config),
        doubling=("block_k", "num_stages", "heads_per_section"),
    )


def _all(problem: Problem, start: ForwardConfig) -> Iterator[ForwardConfig]:
    sections = {_nearest_section(problem, start.heads_per_section * more) for more in (0.25, 1, 8)}
    tanhs = (False,) if problem.soft_cap is None else (False, True)
    sizes, stages = tried(ForwardConfig, "block_k"), tried(ForwardConfig, "num_stages")
    for keys, depth, section, turns, tanh in itertools.product(sizes, stages, sections, (False, True), tanhs):
        yield dataclasses.replace(
            start, block_k=keys, num_stages=depth, heads_per_section=section, ping_pong=turns, fast_tanh=tanh
        )


def _section(problem: Problem) -> int:
    bytes_per_head = 4 * problem.kv_len * problem.head_dim / problem.group_size
    return _nearest_section(problem, _SECTION_BYTES / bytes_per_head)


def _nearest_section(problem: Problem, wanted: float) -> int:
    """Whole groups, a divisor of all heads of the batch."""
    heads, step = problem.batch * problem.num_q_heads, problem.group_size
    divisors = (n for n in range(step, heads + 1, step) if heads % n == 0)
    return min(divisors, key=lambda n: (abs(math.log2(n / wanted)), n))
