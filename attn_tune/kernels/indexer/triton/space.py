"""Problems and devices that the kernel does not support, and the configs worth trying."""

import dataclasses
import itertools
from collections.abc import Iterator

from attn_tune.kernels.indexer.triton.config import Config
from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.space import nearest_feasible
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import refuses_device, shared_limit
from attn_tune.ops.indexer.problem import Problem
from attn_tune.schema.device import Device

MAX_HEAD_DIM, MAX_HEADS = 256, 256
# Sums and one tile of products, in float32 registers a thread, of 255 there are; some are spilled at the edges.
_MOST_FLOATS = 288


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device at all, or None."""
    if reason := refuses_device(device):
        return reason
    if problem.head_dim > MAX_HEAD_DIM:
        return f"h={problem.head_dim} is above {MAX_HEAD_DIM}: a tile does not fit shared memory"
    if problem.num_q_heads > MAX_HEADS:
        return f"n={problem.num_q_heads} is above {MAX_HEADS}: the heads of one query do not fit a tile"
    return None


def infeasible(problem: Problem, device: Device, config: Config) -> str | None:
    """The reason that a config cannot fit the device, or None. Never refuses what compiles and fits."""
    rows = padded(problem.num_q_heads) if config.block_q == 1 else config.block_q
    floats = (1 if config.block_q == 1 else 2) * rows * config.block_k // (32 * config.num_warps)
    if floats > _MOST_FLOATS:
        return f"its sums need {floats} registers a thread; there are 255"
    size = padded(problem.head_dim) * (4 if problem.dtype == "float32" else 2)
    if (needed := config.block_k * size) > shared_limit(device):
        return f"its keys need {needed} bytes of shared memory; {device.family} has {shared_limit(device)}"
    return None


def heuristic(problem: Problem, device: Device) -> Config:
    """The untuned config: 64 queries by 128 keys; of few queries each has a program of its own."""
    row = padded(problem.head_dim) * (4 if problem.dtype == "float32" else 2)
    keys = min(128 if row <= 256 else 64, padded(problem.kv_len))
    if problem.q_len < 16:
        return Config(block_q=1, block_k=keys, num_warps=8, num_stages=1)
    queries = min(64, padded(problem.q_len))
    # With four warps and three stages a prompt of DeepSeek-V3.2 takes 0.6 of the time of eight and two (H100).
    stages = 3 if (keys + 3 * queries) * row <= shared_limit(device) else 1
    return Config(block_q=queries, block_k=keys, num_warps=4, num_stages=stages)


def candidates(problem: Problem, device: Device) -> tuple[Config, ...]:
    """Tiles of one query, or of many of them."""
    start = heuristic(problem, device)
    return nearest_feasible(
        start,
        _all(problem),
        lambda config: infeasible(problem, device, config),
        doubling=("block_q", "block_k", "num_warps"),
    )


def adapt(tuned: Problem, problem: Problem, device: Device, config: Config) -> Config:
    """The config of ``tuned`` for ``problem``: tiles no larger than its queries and keys."""
    return dataclasses.replace(
        config,
        block_q=min(config.block_q, padded(problem.q_len)) if config.block_q > 1 else 1,
        block_k=min(config.block_k, padded(problem.kv_len)),
    )


def _all(problem: Problem) -> Iterator[Config]:
    queries, keys = padded(problem.q_len), padded(problem.kv_len)
    for block_q, block_k, warps, stages in itertools.product(
        *(tried(Config, name) for name in ("block_q", "block_k", "num_warps", "num_stages"))
    ):
        if block_q > queries or (block_q > 1 and problem.q_len == 1) or block_k > keys:
            continue
        if block_q == 1 and stages > 1:
            continue
        yield Config(block_q=block_q, block_k=block_k, num_warps=warps, num_stages=stages)
