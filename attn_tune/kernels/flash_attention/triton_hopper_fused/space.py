"""The configs worth trying, nearest to the untuned choice first."""

import dataclasses
import itertools
from collections.abc import Iterator

from attn_tune.kernels.flash_attention.costs import has_fast_tanh, units
from attn_tune.kernels.flash_attention.triton_hopper_fused.config import ROWS, BackwardConfig
from attn_tune.kernels.flash_attention.triton_hopper_fused.limits import infeasible
from attn_tune.kernels.flash_attention.triton_hopper_fused.plan import num_tiles
from attn_tune.kernels.knobs import tried
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

_SEARCHED = (
    "block_q",
    "block_k",
    "num_stages",
    "dout_stages",
    "staged_dq",
    "ahead",
    "late_dq",
    "takes_late",
    "fast_tanh",
)


def heuristic(problem: Problem, device: Device) -> BackwardConfig:
    """The untuned config: the most rows that fit the registers beside dk and dv."""
    narrow, wide = problem.head_dim <= 64, problem.head_dim > 128
    is_full = problem.bounds == (None, None)
    # On an H200 1.04 times as fast at head dim 64, causal, without `ahead`, and 0.96 on full rows; at head dim 128 1.02
    # times at 4k, 0.97 at 32k, and with dropout 1.06 times under a causal mask and 1.03 on full rows.
    late_dq = not is_full if narrow else problem.dropout_rate > 0 and not wide
    config = BackwardConfig(
        block_q=128 if narrow else 64,
        block_k=64 if wide else 128,
        num_stages=2,
        dout_stages=1 if wide else 2,
        num_programs=1,
        # On an H100 at head dim 128 1.07 to 1.10 times as fast without a mask, 0.96 to 0.98 under a causal one.
        ahead=is_full and not late_dq,
        late_dq=late_dq,
        # On an H200 1.02 to 1.28 times as fast where tiles differ in length, under a causal mask, and most so with
        # documents or many query heads a key head. Within a window, where most are alike, down to 0.94.
        takes_late=problem.has_segments or problem.window[0] is None,
        # As the forward's untuned config, so that both make the same weights.
        fast_tanh=has_fast_tanh(problem),
    )
    return adapt(problem, problem, device, config)


def adapt(tuned: Problem, problem: Problem, device: Device, config: BackwardConfig) -> BackwardConfig:
    """The config, on all multiprocessors."""
    del tuned
    return dataclasses.replace(config, num_programs=min(num_tiles(problem, config), units(device)))


def candidates(problem: Problem, device: Device) -> tuple[BackwardConfig, ...]:
    """Both tiles of rows, stages, both ways to add dq, to make it, to begin a step and to take tiles, and both tanh."""
    start = heuristic(problem, device)
    feasible = [c for c in _all(problem, device, start) if infeasible(problem, device, c) is None]
    return (start, *sorted((c for c in feasible if c != start), key=lambda c: _distance(start, c)))


def _all(problem: Problem, device: Device, start: BackwardConfig) -> Iterator[BackwardConfig]:
    values = {name: tried(BackwardConfig, name) for name in _SEARCHED}
    if problem.soft_cap is None:
        values["fast_tanh"] = (False,)
    for chosen in itertools.product(*values.values()):
        knobs = dict(zip(_SEARCHED, chosen, strict=True))
        if knobs["block_q"] <= knobs["block_k"] and not (knobs["late_dq"] and knobs["block_k"] == ROWS):
            yield adapt(problem, problem, device, dataclasses.replace(start, **knobs))


def _distance(start: BackwardConfig, other: BackwardConfig) -> int:
    """The number of knobs that differ."""
    return sum(getattr(start, n) != getattr(other, n) for n in _SEARCHED)
