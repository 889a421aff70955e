"""Problems that JAX's Mosaic GPU attention cannot do, and tiles that cannot fit."""

import functools
import importlib.metadata

from attn_tune.kernels.flash_attention.mosaic_gpu.config import DqConfig, ForwardConfig, Launch
from attn_tune.kernels.lang.libraries.features import (
    lacking,
    not_on,
    visible_bounds,
)
from attn_tune.kernels.lang.libraries.mosaic import (
    FORWARD_GROUPS,
    HOPPER,
    WARPGROUP_ROWS,
    shared_bytes,
    shared_reason,
)
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

_MAX_HEAD_DIM = 256
# Bytes that the forward reserves for its rows' reductions.
_REDUCTION_BYTES = 2048
# CUDA versions whose ptxas miscompiles the causal forward; JAX refuses them.
_BAD_CUDA = ((12, 8), (12, 9, 1))


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that the kernel cannot do the problem on this device at all, or None."""
    return (
        not_on(device, (HOPPER, HOPPER), "JAX's Mosaic GPU attention")
        or _of_shape(problem, direction)
        or lacking(problem)
        or _of_mask(problem, direction)
    )


def infeasible(problem: Problem, device: Device, launch: Launch) -> str | None:
    """The reason that one launch cannot run, or None."""
    return _tile_reason(problem, launch) or shared_reason(device, _shared(problem, launch))


def _of_shape(p: Problem, direction: str) -> str | None:
    if p.dtype == "float32":
        return "it takes bfloat16 and float16 only"
    if p.head_dim != p.v_head_dim:
        return "its keys and values have one head dim"
    if p.head_dim % 64 or p.head_dim > _MAX_HEAD_DIM:
        return f"head_dim={p.head_dim} must be a multiple of 64 and at most {_MAX_HEAD_DIM}"
    rows = WARPGROUP_ROWS * (FORWARD_GROUPS if direction == "fwd" else 1)
    for name, length, step in (
        ("q_len", p.q_len, rows),
        ("kv_len", p.kv_len, WARPGROUP_ROWS),
    ):
        if length % step:
            return f"{name}={length} must be a multiple of {step}: it masks no partial tile"
    return None


def _of_mask(p: Problem, direction: str) -> str | None:
    left, right = visible_bounds(p)
    if (left, right) == (None, None):
        return None
    if left is not None or not p.causal:
        return "it has no window"
    if direction == "bwd":
        return "its backward is not causal"
    if p.q_len != p.kv_len:
        return "it aligns causal masks at the top left, which differs when query and key lengths do"
    version = _cuda_version()
    if version is not None and _BAD_CUDA[0] <= version < _BAD_CUDA[1]:
        return f"CUDA {'.'.join(map(str, version))} miscompiles its causal forward; 12.9.1 does not"
    return None


def _tile_reason(p: Problem, launch: Launch) -> str | None:
    if isinstance(launch, ForwardConfig):
        if launch.pipeline_emitter and visible_bounds(p) != (None, None):
            return "the variant with the pipeline emitter is not causal"
        steps = {"block_q": FORWARD_GROUPS * launch.block_q, "block_kv": launch.block_kv}
    else:
        groups = launch.compute_warpgroups
        # The other launch of the same call has as many warpgroups, and tiles of its own.
        rows = WARPGROUP_ROWS * groups
        if p.q_len % rows or p.kv_len % rows:
            return f"q_len={p.q_len} and kv_len={p.kv_len} must be multiples of {rows}, its warpgroups' rows"
        steps = {"block_q": launch.block_q, "block_kv": launch.block_kv}
        steps["block_q" if isinstance(launch, DqConfig) else "block_kv"] *= groups
    for name, length in (("block_q", p.q_len), ("block_kv", p.kv_len)):
        if length % steps[name]:
            return f"{name}={getattr(launch, name)} leaves a partial tile of {length} tokens"
    return None


def _shared(p: Problem, launch: Launch) -> int:
    row = 2 * p.head_dim
    if isinstance(launch, ForwardConfig):
        stages = min(launch.max_concurrent_steps, p.kv_len // launch.block_kv)
        arrays = [
            FORWARD_GROUPS * launch.block_q * row,
            FORWARD_GROUPS * launch.block_q * 4,
            *[stages * launch.block_kv * row] * 2,
        ]
        # The emitter has one barrier for the arrival of keys and values, the other variant one for each.
        arrivals = 3 if launch.pipeline_emitter else 4
        return shared_bytes(arrays, arrivals * stages + 3, _REDUCTION_BYTES)
    groups = launch.compute_warpgroups
    if isinstance(launch, DqConfig):
        tiles = p.q_len // (groups * launch.block_q)
        stages = min(launch.max_concurrent_steps, tiles, p.kv_len // launch.block_kv)
        arrays = [
            *[groups * launch.block_q * row, groups * launch.block_q * 4] * 2,
            *[stages * launch.block_kv * row] * 2,
        ]
        return shared_bytes(arrays, 4 * groups + 3 * stages)
    tiles = p.kv_len // (groups * launch.block_kv)
    stages = min(launch.max_concurrent_steps, tiles, p.q_len // launch.block_q)
    arrays = [
        *[groups * launch.block_kv * row] * 2,
        *[stages * launch.block_q * row, stages * launch.block_q * 4] * 2,
    ]
    return shared_bytes(arrays, 2 * groups + 5 * stages)


@functools.cache
def _cuda_version() -> tuple[int, ...] | None:
    """Of the CUDA 12 runtime's wheel, if that is what is installed."""
    try:
        return tuple(int(part) for part in importlib.metadata.version("nvidia-cuda-runtime-cu12").split("."))
    except importlib.metadata.PackageNotFoundError:
        return None
