"""The configs worth trying, nearest to the untuned choice first, and that choice."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.space import nearest_feasible
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.native_sparse_attention.triton.config import (
    BackwardConfig,
    DkvConfig,
    DqConfig,
    ForwardConfig,
)
from attn_tune.kernels.native_sparse_attention.triton.limits import fits, infeasible
from attn_tune.ops.native_sparse_attention.problem import Problem
from attn_tune.schema.device import Device

type Walk = ForwardConfig | DqConfig

# On an H100 the forward of 32k tokens, 16 blocks of 64 keys and 16 query heads a key head took 7.9 ms so, with four
# warps and 64 keys 9.1; dq with four warps half a millisecond more. A product of 16 rows has no work for more warps.
_FEW_WARPS, _FEW_ROWS = 2, 16
_WALKED = ("block_k", "num_warps", "num_stages")
_OWNED = ("block_q", "block_k", "share", "num_warps", "num_stages")
_DOUBLING = ("block_q", "block_k", "share", "num_warps")


def forward_heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """The forward's untuned config."""
    return _walk(problem, device, ForwardConfig(block_k=32, num_warps=_FEW_WARPS, num_stages=3))


def backward_heuristic(problem: Problem, device: Device) -> BackwardConfig:
    """The backward's untuned config."""
    dkv = DkvConfig(block_q=64, block_k=64, share=1024, num_warps=4, num_stages=2)
    wide = max(padded(problem.head_dim), padded(problem.v_head_dim)) > 128
    if problem.dtype == "float32":
        dkv = dataclasses.replace(dkv, block_q=32, block_k=32)
    elif wide:
        dkv = dataclasses.replace(dkv, block_q=32, num_warps=8)
    dkv = dataclasses.replace(dkv, block_k=min(dkv.block_k, problem.block_size))
    while not fits(problem, device, dkv) and (less := _smaller(dkv, "block_q")) != dkv:
        dkv = less
    dq = _walk(problem, device, DqConfig(block_k=64, num_warps=_FEW_WARPS, num_stages=2))
    return BackwardConfig(dq=dq, dkv=dkv)


def adapt_forward(tuned: Problem, problem: Problem, device: Device, config: ForwardConfig) -> ForwardConfig:
    """Tiles no larger than all keys that a query names."""
    return dataclasses.replace(config, block_k=min(config.block_k, _most_keys(problem)))


def adapt_backward(tuned: Problem, problem: Problem, device: Device, config: BackwardConfig) -> BackwardConfig:
    """Tiles no larger than all keys that a query names; those of keys are of the same blocks."""
    return dataclasses.replace(
        config, dq=dataclasses.replace(config.dq, block_k=min(config.dq.block_k, _most_keys(problem)))
    )


def forward_candidates(problem: Problem, device: Device) -> tuple[ForwardConfig, ...]:
    """Forward configs."""
    return _nearest(problem, device, forward_heuristic(problem, device), _walks(problem, ForwardConfig))


def dq_candidates(problem: Problem, device: Device) -> tuple[DqConfig, ...]:
    """Configs of the dq launch."""
    return _nearest(problem, device, backward_heuristic(problem, device).dq, _walks(problem, DqConfig))


def dkv_candidates(problem: Problem, device: Device) -> tuple[DkvConfig, ...]:
    """Configs of the dk/dv launches."""
    return _nearest(problem, device, backward_heuristic(problem, device).dkv, _owned(problem))


def _nearest[T](problem: Problem, device: Device, start: T, configs: Iterator[T]) -> tuple[T, ...]:
    def reason(config: Any) -> str | None:
        return infeasible(problem, device, config)

    doubling = tuple(name for name in _DOUBLING if hasattr(start, name))
    return nearest_feasible(start, configs, reason, doubling=doubling)


def _walk[T: (ForwardConfig, DqConfig)](problem: Problem, device: Device, config: T) -> T:
    rows = padded(problem.group_size)
    config = dataclasses.replace(
        config, block_k=min(config.block_k, _most_keys(problem)), num_warps=min(8, _FEW_WARPS * rows // _FEW_ROWS)
    )
    if problem.dtype == "float32":
        # Three passes of tf32 hold three tiles where one pass holds one.
        config = dataclasses.replace(config, block_k=min(32, config.block_k), num_warps=min(8, 2 * config.num_warps))
    while not fits(problem, device, config) and (less := _smaller(config, "block_k")) != config:
        config = less
    return config


def _smaller[T: (ForwardConfig, DqConfig, DkvConfig)](config: T, walked: str) -> T:
    """One step down: fewer stages, then shorter tiles of what is walked, then of keys that are owned."""
    if config.num_stages > 2:
        return dataclasses.replace(config, num_stages=config.num_stages - 1)
    name = walked if getattr(config, walked) > 16 else "block_k"
    return dataclasses.replace(config, **{name: max(16, getattr(config, name) // 2)})


def _most_keys(problem: Problem) -> int:
    return padded(min(problem.num_selected * problem.block_size, 256))


def _walks[T: (ForwardConfig, DqConfig)](problem: Problem, make: type[T]) -> Iterator[T]:
    rows = padded(problem.group_size)
    for values in itertools.product(*(tried(make, name) for name in _WALKED)):
        config = make(**dict(zip(_WALKED, values, strict=True)))
        # Warps share the rows and the keys of a tile of logits; each has at least 16 by 8.
        if config.block_k <= _most_keys(problem) and config.num_warps * 128 <= rows * config.block_k:
            yield config


def _owned(problem: Problem) -> Iterator[DkvConfig]:
    for values in itertools.product(*(tried(DkvConfig, name) for name in _OWNED)):
        config = DkvConfig(**dict(zip(_OWNED, values, strict=True)))
        if config.num_warps * 128 <= config.block_q * config.block_k and config.block_k <= problem.block_size:
            yield config
