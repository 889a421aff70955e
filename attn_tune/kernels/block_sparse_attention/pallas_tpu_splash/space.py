"""The launches worth trying, and the untuned choice: whole blocks of the mask, as far as they fit."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from attn_tune.kernels.block_sparse_attention.pallas_tpu_splash.config import (
    BackwardConfig,
    ComputedLaunch,
    DkvConfig,
    DqConfig,
    ForwardConfig,
    Launch,
)
from attn_tune.kernels.block_sparse_attention.pallas_tpu_splash.limits import infeasible, vmem_bytes
from attn_tune.kernels.lang.pallas_tpu import knobs
from attn_tune.kernels.lang.pallas_tpu.memory import limit_for
from attn_tune.kernels.lang.space import nearest_first
from attn_tune.ops.block_sparse_attention.problem import Problem
from attn_tune.schema.device import Device

# Products of more than 512 columns gain nothing.
_PREFERRED_COMPUTE = 512


def forward_heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """The forward's untuned config."""
    return _untuned(ForwardConfig, problem, device)


def backward_heuristic(problem: Problem, device: Device) -> BackwardConfig:
    """The backward's untuned config."""
    return BackwardConfig(dq=_untuned(DqConfig, problem, device), dkv=_untuned(DkvConfig, problem, device))


def forward_candidates(problem: Problem, device: Device) -> tuple[ForwardConfig, ...]:
    """Forward configs."""
    return _candidates(ForwardConfig, problem, device)


def dq_candidates(problem: Problem, device: Device) -> tuple[DqConfig, ...]:
    """Configs of the dq launch."""
    return _candidates(DqConfig, problem, device)


def dkv_candidates(problem: Problem, device: Device) -> tuple[DkvConfig, ...]:
    """Configs of the dk/dv launch."""
    return _candidates(DkvConfig, problem, device)


def _candidates[T: Launch](kind: type[T], problem: Problem, device: Device) -> tuple[T, ...]:
    start = _untuned(kind, problem, device)
    return nearest_first(start, _launches(kind, problem, device), doubling=("block_q", "block_kv"))


def _untuned[T: Launch](kind: type[T], problem: Problem, device: Device) -> T:
    """The largest launch that fits; the smallest one where none does."""
    found = sorted(_launches(kind, problem, device), key=_size, reverse=True)
    return next((launch for launch in found if infeasible(problem, device, launch) is None), found[-1])


def _size(launch: Launch) -> tuple[int, int]:
    compute = getattr(launch, "block_kv_compute", 0)
    return launch.block_q * launch.block_kv, compute if compute <= _PREFERRED_COMPUTE else -compute


def _launches[T: Launch](kind: type[T], problem: Problem, device: Device) -> Iterator[T]:
    """Launches of one kind; each asks for the least VMEM limit that it fits."""
    sizes = (
        [block for block in knobs.BLOCKS if whole % block == 0] or [whole]
        for whole in (problem.mask_block_q, problem.mask_block_k)
    )
    for block_q, block_kv in itertools.product(*sizes):
        computed: list[dict[str, Any]] = [{}]
        if issubclass(kind, ComputedLaunch):
            computed = [{"block_kv_compute": n} for n in knobs.PRODUCT_BLOCKS if block_kv % n == 0]
            computed = computed or [{"block_kv_compute": block_kv}]
        for more in computed:
            launch = kind(block_q=block_q, block_kv=block_kv, **more)
            yield dataclasses.replace(launch, vmem_limit_kib=limit_for(device, vmem_bytes(problem, launch)))
