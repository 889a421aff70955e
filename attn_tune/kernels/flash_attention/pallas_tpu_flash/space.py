"""The configs worth trying, nearest to the untuned choice first."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator

from attn_tune.kernels.flash_attention.pallas_tpu_flash import limits
from attn_tune.kernels.flash_attention.pallas_tpu_flash.config import (
    BackwardConfig,
    DkvConfig,
    DqConfig,
    ForwardConfig,
    Launch,
)
from attn_tune.kernels.flash_attention.pallas_tpu_flash.vmem import expected_bytes, vmem_bytes
from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.pallas_tpu import knobs
from attn_tune.kernels.lang.pallas_tpu.estimates import limit_between
from attn_tune.kernels.lang.pallas_tpu.memory import LANES, limit_reason, round_up
from attn_tune.kernels.lang.space import first_feasible
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

# The untuned choice takes the first of these that fits.
_PREFERRED, _PREFERRED_PRODUCT = (1024, 512, 256, 128), 512


def forward_candidates(problem: Problem, device: Device) -> tuple[ForwardConfig, ...]:
    """Forward configs; several sequences a step only where one sequence is a step of its own."""
    q_len, kv_len = _lengths(problem)
    configs = (
        ForwardConfig(block_b=b, block_q=q, block_k_major=major, block_k=k)
        for q, (major, k) in itertools.product(_blocks(q_len), _nested(kv_len))
        for b in _batches(problem, q * major)
    )
    return _nearest_first(forward_heuristic(problem, device), problem, device, configs)


def dq_candidates(problem: Problem, device: Device) -> tuple[DqConfig, ...]:
    """Configs of the dq launch."""
    q_len, kv_len = _lengths(problem)
    configs = (
        DqConfig(block_q=q, block_k_major=major, block_k=k)
        for q, (major, k) in itertools.product(_blocks(q_len), _nested(kv_len))
    )
    return _nearest_first(backward_heuristic(problem, device).dq, problem, device, configs)


def dkv_candidates(problem: Problem, device: Device) -> tuple[DkvConfig, ...]:
    """Configs of the dk/dv launch."""
    q_len, kv_len = _lengths(problem)
    configs = (
        DkvConfig(block_q_major=q_major, block_q=q, block_k_major=k_major, block_k=k)
        for (q_major, q), (k_major, k) in itertools.product(_nested(q_len), _nested(kv_len))
    )
    return _nearest_first(backward_heuristic(problem, device).dkv, problem, device, configs)


def forward_heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """The largest square block up to 1024 that fits."""
    configs = (ForwardConfig(block_q=q, block_k_major=k, block_k=_product(k)) for q, k in _preferred(problem))
    return _first_feasible(problem, device, configs)


def backward_heuristic(problem: Problem, device: Device) -> BackwardConfig:
    """The largest square blocks up to 1024 that fit."""
    dq = (DqConfig(block_q=q, block_k_major=k, block_k=_product(k)) for q, k in _preferred(problem))
    dkv = (
        DkvConfig(block_q_major=q, block_q=_product(q), block_k_major=k, block_k=_product(k))
        for q, k in _preferred(problem)
    )
    return BackwardConfig(dq=_first_feasible(problem, device, dq), dkv=_first_feasible(problem, device, dkv))


def adapt_forward(tuned: Problem, problem: Problem, device: Device, config: ForwardConfig) -> ForwardConfig:
    """The launch with no block longer than the tokens there are, and as many sequences a step as divide the batch."""
    block_b = math.gcd(config.block_b, problem.batch)
    return dataclasses.replace(_cut(problem, config), block_b=block_b)


def adapt_backward(tuned: Problem, problem: Problem, device: Device, config: BackwardConfig) -> BackwardConfig:
    """Both launches with no block longer than the tokens there are."""
    return BackwardConfig(dq=_cut(problem, config.dq), dkv=_cut(problem, config.dkv))


def _cut[L: Launch](problem: Problem, launch: L) -> L:
    most_q, most_k = (round_up(length, LANES) for length in _lengths(problem))
    major = min(launch.block_k_major, most_k)
    blocks = {"block_k_major": major, "block_k": _product(major, launch.block_k)}
    if isinstance(launch, DkvConfig):
        major = min(launch.block_q_major, most_q)
        blocks |= {"block_q_major": major, "block_q": _product(major, launch.block_q)}
    else:
        blocks["block_q"] = min(launch.block_q, most_q)
    return dataclasses.replace(launch, **blocks)


def _lengths(problem: Problem) -> tuple[int, int]:
    both = max(problem.q_len, problem.kv_len)
    return (both, both) if problem.causal else (problem.q_len, problem.kv_len)


def _blocks(length: int) -> tuple[int, ...]:
    most = round_up(length, LANES)
    return tuple(sorted({min(block, most) for block in knobs.BLOCKS}))


def _nested(length: int) -> Iterator[tuple[int, int]]:
    """``(block in VMEM, block of a product)``."""
    for major, minor in itertools.product(_blocks(length), repeat=2):
        if minor <= knobs.PRODUCT_BLOCKS[-1] and major % minor == 0:
            yield major, minor


def _batches(problem: Problem, pairs: int) -> Iterator[int]:
    # The loop over sequences is unrolled: more than a few long ones take minutes to compile.
    for batch in tried(ForwardConfig, "block_b"):
        if problem.batch % batch == 0 and (batch == 1 or batch * pairs <= 1024 * 1024):
            yield batch


def _preferred(problem: Problem) -> Iterator[tuple[int, int]]:
    for block in _PREFERRED:
        q_len, kv_len = (min(block, round_up(n, LANES)) for n in _lengths(problem))
        yield q_len, kv_len


def _product(block: int, most: int = _PREFERRED_PRODUCT) -> int:
    sizes = range(LANES, min(block, most) + 1, LANES)
    return max(size for size in sizes if block % size == 0)


def _with_limit[T: Launch](problem: Problem, device: Device, launch: T) -> T:
    limit = limit_between(device, vmem_bytes(problem, launch), expected_bytes(problem, launch))
    return dataclasses.replace(launch, vmem_limit_kib=limit)


def _first_feasible[T: Launch](problem: Problem, device: Device, configs: Iterable[T]) -> T:
    limited = (_with_limit(problem, device, config) for config in configs)

    def reason(launch: T) -> str | None:
        short = limit_reason(device, expected_bytes(problem, launch), launch.vmem_limit_kib)
        return short or limits.infeasible(problem, device, launch)

    return first_feasible(limited, reason)


def _nearest_first[T: Launch](start: T, problem: Problem, device: Device, configs: Iterable[T]) -> tuple[T, ...]:
    """``start``, then the others by how many doublings away they are; all distinct, with the limit that each needs."""
    near = dataclasses.asdict(start)

    def distance(config: T) -> tuple[float, list[int]]:
        here = dataclasses.asdict(config)
        blocks = [name for name in here if name.startswith("block")]
        doublings = sum(abs(math.log2(here[name] / near[name])) for name in blocks)
        return doublings, [here[name] for name in blocks]

    found = {_with_limit(problem, device, config) for config in configs}
    return (start, *sorted(found - {start}, key=distance))
