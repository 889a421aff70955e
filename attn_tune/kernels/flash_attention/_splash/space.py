"""The launches worth trying, and the untuned choice."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

from attn_tune.kernels.flash_attention._splash.config import (
    HEAD_DIM_MINOR,
    SEQ_MINOR,
    ComputedLaunch,
    Launch,
)
from attn_tune.kernels.flash_attention._splash.limits import PREFERRED, infeasible
from attn_tune.kernels.flash_attention._splash.vmem import expected_bytes, vmem_bytes
from attn_tune.kernels.lang.pallas_tpu import knobs
from attn_tune.kernels.lang.pallas_tpu.estimates import limit_between
from attn_tune.kernels.lang.pallas_tpu.memory import LANES, limit_reason, round_up
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

# The untuned choice takes the first of these that fits; products of more than 512 columns gain nothing. The second has
# a table of visited blocks for a million tokens, which the first has not.
_BLOCKS, _PREFERRED_COMPUTE = (PREFERRED, 2048, 512, 256, 128), 512


def candidates[T: Launch](kind: type[T], problem: Problem, device: Device) -> tuple[T, ...]:
    """Launches of one kind, nearest to the untuned one first; each asks for the least VMEM limit that it fits."""
    blocks = itertools.product(_blocks(problem.q_len), _blocks(problem.kv_len), _layouts(problem))
    found = (
        with_limit(problem, device, kind(block_q=q, block_kv=kv, **layouts, **computed))
        for q, kv, layouts in blocks
        for computed in _compute_blocks(kind, kv)
    )
    start = heuristic(kind, problem, device)
    return (start, *sorted(set(found) - {start}, key=lambda launch: _distance(start, launch)))


def heuristic[T: Launch](kind: type[T], problem: Problem, device: Device) -> T:
    """The largest square block up to 1024 that fits, or a larger one; all operands as they come."""
    launch = None
    for block in _BLOCKS:
        q, kv = (min(block, round_up(n, LANES)) for n in (problem.q_len, problem.kv_len))
        computed: dict[str, Any] = {}
        if issubclass(kind, ComputedLaunch):
            computed = {"block_kv_compute": _largest_divisor(kv, _PREFERRED_COMPUTE)}
        launch = with_limit(problem, device, kind(block_q=q, block_kv=kv, **computed))
        short = limit_reason(device, expected_bytes(problem, launch), launch.vmem_limit_kib)
        if short is None and infeasible(problem, device, launch) is None:
            break
    assert launch is not None
    return launch


def with_limit[T: Launch](problem: Problem, device: Device, launch: T) -> T:
    """The launch with the VMEM limit that it may need. A larger one would take VMEM from the program around it."""
    limit = limit_between(device, vmem_bytes(problem, launch), expected_bytes(problem, launch))
    return dataclasses.replace(launch, vmem_limit_kib=limit)


def adapt[L: Launch](tuned: Problem, problem: Problem, device: Device, launch: L) -> L:
    """The launch with no block longer than the tokens there are."""
    block_kv = min(launch.block_kv, round_up(problem.kv_len, LANES))
    cut = {"block_q": min(launch.block_q, round_up(problem.q_len, LANES)), "block_kv": block_kv}
    if isinstance(launch, ComputedLaunch):
        cut["block_kv_compute"] = _largest_divisor(block_kv, launch.block_kv_compute)
    return dataclasses.replace(launch, **cut)


def _blocks(length: int) -> tuple[int, ...]:
    most = round_up(length, LANES)
    return tuple(sorted({min(block, most) for block in knobs.BLOCKS}))


def _compute_blocks(kind: type[Launch], block_kv: int) -> Iterator[dict[str, Any]]:
    if not issubclass(kind, ComputedLaunch):
        yield {}
        return
    for size in sorted({min(size, block_kv) for size in knobs.PRODUCT_BLOCKS}):
        if block_kv % size == 0:
            yield {"block_kv_compute": size}


def _layouts(problem: Problem) -> Iterable[dict[str, str]]:
    """All operands head-dim-minor, and each one turned alone; where heads are narrower than the lanes, more at a time.

    A narrow head leaves lanes empty unless its length is innermost.
    """
    names = ("q_layout", "k_layout", "v_layout")
    turned: tuple[tuple[str, ...], ...] = tuple((name,) for name in names)
    if problem.head_dim < LANES:
        turned = (names, ("k_layout", "v_layout"), ("k_layout",))
    plain: dict[str, str] = dict.fromkeys(names, HEAD_DIM_MINOR)
    return (plain, *(plain | dict.fromkeys(some, SEQ_MINOR) for some in turned))


def _distance(start: Launch, launch: Launch) -> tuple[float, list[str]]:
    """Doublings of blocks and turns of layouts away from ``start``."""
    near, here = _values(start), _values(launch)
    doublings = sum(abs(math.log2(here[name] / near[name])) for name in here if name.startswith("block"))
    turned = sum(here[name] != near[name] for name in here if name.endswith("layout"))
    return (doublings + turned, [str(value) for value in here.values()])


def _values(launch: Launch) -> dict[str, Any]:
    return dataclasses.asdict(launch)


def _largest_divisor(block: int, most: int) -> int:
    return max(size for size in range(LANES, min(block, most) + 1, LANES) if block % size == 0)
