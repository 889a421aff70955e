"""The configs worth trying, nearest to the untuned choice first."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

from attn_tune.kernels.flash_attention._pallas_tpu.memory import LANES, limit_for
from attn_tune.kernels.flash_attention._pallas_tpu.padding import round_up
from attn_tune.kernels.flash_attention.pallas_tpu_splash.config import (
    HEAD_DIM_MINOR,
    SEQ_MINOR,
    ForwardConfig,
)
from attn_tune.kernels.flash_attention.pallas_tpu_splash.heuristic import forward_heuristic
from attn_tune.kernels.flash_attention.pallas_tpu_splash.limits import Launch, vmem_bytes
from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.schema.device import Device

BLOCKS = (128, 256, 512, 1024, 2048)
# Below these the loop's own work is larger than its products'.
COMPUTE_BLOCKS = (128, 256, 512, 1024)


def forward_candidates(problem: Problem, device: Device) -> tuple[ForwardConfig, ...]:
    """Forward configs; each asks for the least VMEM limit that it fits."""
    configs = (
        ForwardConfig(block_q=q, block_kv=kv, block_kv_compute=compute, **layouts)
        for q, kv, compute in _computed_blocks(problem)
        for layouts in _layouts()
    )
    return _nearest_first(forward_heuristic(problem, device), limited(problem, device, configs))


def limited[T: Launch](problem: Problem, device: Device, configs: Iterable[T]) -> Iterator[T]:
    """The configs with the VMEM limit that each needs."""
    for config in configs:
        limit = limit_for(device, vmem_bytes(problem, config))
        yield dataclasses.replace(config, vmem_limit_kib=limit)


def _computed_blocks(problem: Problem) -> Iterator[tuple[int, int, int]]:
    for q, kv in itertools.product(_blocks(problem.q_len), _blocks(problem.kv_len)):
        for compute in COMPUTE_BLOCKS:
            if kv % compute == 0:
                yield q, kv, compute


def _blocks(length: int) -> tuple[int, ...]:
    most = round_up(length, LANES)
    return tuple(sorted({min(block, most) for block in BLOCKS}))


def _layouts() -> tuple[dict[str, str], ...]:
    """All operands head-dim-minor, and each one turned alone."""
    plain = dict.fromkeys(("q_layout", "k_layout", "v_layout"), HEAD_DIM_MINOR)
    return (plain, *(plain | {name: SEQ_MINOR} for name in plain))


def _nearest_first[T: Launch](start: T, configs: Iterable[T]) -> tuple[T, ...]:
    """``start``, then the others by how many doublings away they are; all distinct."""

    def values(config: T) -> dict[str, Any]:
        return dataclasses.asdict(config)

    def distance(config: T) -> tuple:
        near, here = values(start), values(config)
        doublings = sum(
            abs(math.log2(here[name] / near[name])) for name in here if name.startswith("block")
        )
        turned = sum(here[name] != near[name] for name in here if name.endswith("layout"))
        return (doublings + turned, [str(value) for value in here.values()])

    others = sorted(set(configs) - {start}, key=distance)
    return (start, *others)
