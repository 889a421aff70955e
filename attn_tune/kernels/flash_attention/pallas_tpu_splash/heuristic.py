"""The untuned choice, per generation."""

import dataclasses
from collections.abc import Iterable

from attn_tune.kernels.flash_attention._pallas_tpu.memory import LANES, limit_for
from attn_tune.kernels.flash_attention._pallas_tpu.padding import round_up
from attn_tune.kernels.flash_attention.pallas_tpu_splash.config import ForwardConfig
from attn_tune.kernels.flash_attention.pallas_tpu_splash.limits import infeasible, vmem_bytes
from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.schema.device import Device


def forward_heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """Large blocks, products of half a block."""
    return _first_feasible(
        problem,
        device,
        (
            ForwardConfig(
                block_q=_cut(block, problem.q_len),
                block_kv=_cut(block, problem.kv_len),
                block_kv_compute=_divisor(_cut(block, problem.kv_len), 512),
            )
            for block in (1024, 512, 256, 128)
        ),
    )


def _first_feasible[T: ForwardConfig](problem: Problem, device: Device, configs: Iterable[T]) -> T:
    for config in configs:
        limit = limit_for(device, vmem_bytes(problem, config))
        config = dataclasses.replace(config, vmem_limit_kib=limit)
        if infeasible(problem, device, config) is None:
            break
    return config


def _cut(block: int, length: int) -> int:
    return min(block, round_up(length, LANES))


def _divisor(block: int, most: int) -> int:
    """The largest multiple of 128 that divides ``block`` and is at most ``most``."""
    return max(size for size in range(LANES, min(block, most) + 1, LANES) if block % size == 0)
