"""The configs worth trying, nearest to the untuned choice first, and the search that kernels declare."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.pallas_tpu.batched import limits
from attn_tune.kernels.lang.pallas_tpu.batched.blocks import vmem
from attn_tune.kernels.lang.pallas_tpu.batched.config import Config
from attn_tune.kernels.lang.pallas_tpu.memory import KIB, LIMITS_KIB, limit_for, limit_of
from attn_tune.kernels.lang.space import first_feasible, nearest_feasible
from attn_tune.kernels.spec import Search
from attn_tune.schema.device import Device
from attn_tune.schema.direction import WHOLE

# So few queries of a sequence are one block: their keys are read once.
_FEW = 8
_DOUBLING = ("bq_sz", "bq_c_sz", "bkv_sz", "batch_size")


def search(call: str, queries: Callable[[Any], int], *, cuts_queries: bool) -> Search:
    """The search of a kernel.

    Args:
      call: the path of its call.
      queries: gives the most queries that a sequence of a problem may have.
      cuts_queries: a sequence may have more queries than one block, so that blocks of several sizes are tried.
    """

    def infeasible(problem: Any, device: Device, config: Config) -> str | None:
        return limits.infeasible(problem, device, config, queries(problem))

    return Search(
        config=Config,
        heuristic=lambda problem, device: heuristic(problem, device, queries(problem)),
        candidates={WHOLE: lambda problem, device: candidates(problem, device, queries(problem))},
        infeasible=infeasible,
        adapt=lambda tuned, problem, device, config: adapt(problem, device, config, queries(problem)),
        call=call,
        # Larger blocks take more VMEM, and so do more of them.
        grows=(*(("bq_sz",) if cuts_queries else ()), "bkv_sz", "batch_size", "n_buffer"),
    )


def heuristic(problem: Any, device: Device, queries: int) -> Config:
    """The untuned config: of each block as many queries as a sequence has where these are few, and keys that fit."""
    p = problem
    few = queries <= _FEW
    queries_of_block = (queries,) if few else tuple(q for q in (32, 16) if q <= limits.most_queries(queries)) or (8,)
    keys = [
        1 << n for n in range(min(512, limits.most_keys(p)).bit_length() - 1, -1, -1) if 1 << n >= limits.LEAST_KEYS
    ]
    keys = [n for n in keys if n % p.page_size == 0] or [max(limits.LEAST_KEYS, p.page_size)]
    together = (4, 2, 1) if few else (2, 1)
    blocks = (
        Config(bq_sz=q, bq_c_sz=q, bkv_sz=n, batch_size=b, n_buffer=2)
        for q, n, b in itertools.product(queries_of_block, keys, together)
    )
    configs = (_limited(p, device, config) for config in blocks)
    return first_feasible(configs, lambda config: _reason(p, device, config, queries))


def adapt(problem: Any, device: Device, config: Config, queries: int) -> Config:
    """The config with no more queries and keys than a sequence has, and the limit it needs."""
    most = queries if queries <= _FEW else limits.most_queries(queries)
    bq_sz = queries if queries <= _FEW else min(config.bq_sz, most)
    fitted = dataclasses.replace(
        config,
        bq_sz=bq_sz,
        bq_c_sz=min(config.bq_c_sz, bq_sz),
        bkv_sz=max(problem.page_size, min(config.bkv_sz, limits.most_keys(problem))),
    )
    return _limited(problem, device, fitted)


def candidates(problem: Any, device: Device, queries: int) -> tuple[Config, ...]:
    """Blocks of all sizes that fit."""
    start = heuristic(problem, device, queries)
    reason = functools.partial(limits.infeasible, problem, device, queries=queries)
    return nearest_feasible(start, _all(problem, device, queries), reason, doubling=_DOUBLING)


def _all(problem: Any, device: Device, queries: int) -> Iterator[Config]:
    few = queries <= _FEW
    rows = (queries,) if few else tried(Config, "bq_sz")
    products = tuple({1, queries}) if few else tried(Config, "bq_c_sz")
    others = (tried(Config, name) for name in ("bkv_sz", "batch_size", "n_buffer", "schedule_steps"))
    fused: tuple[bool, ...] = tried(Config, "fuse_accum")
    for fuse, (q, some, n, b, deep, steps) in itertools.product(fused, itertools.product(rows, products, *others)):
        if some <= q:
            yield _limited(
                problem,
                device,
                Config(
                    bq_sz=q, bq_c_sz=some, bkv_sz=n, batch_size=b, n_buffer=deep, fuse_accum=fuse, schedule_steps=steps
                ),
            )


def _reason(p: Any, device: Device, config: Config, queries: int) -> str | None:
    """The reason that an untuned config may not run, or None: one that spills as expected fits too."""
    if vmem(p, config).expected > limit_of(device, config.vmem_limit_kib):
        return "its blocks may not fit"
    return limits.infeasible(p, device, config, queries)


def _limited(p: Any, device: Device, config: Config) -> Config:
    """The config with the limit that its blocks are expected to need, or with the largest one."""
    needed = vmem(p, config).expected
    limit = limit_for(device, needed)
    if limit is None and needed > limit_of(device, None):
        limit = max((kib for kib in LIMITS_KIB if KIB * kib < device.shared_bytes), default=None)
    return dataclasses.replace(config, vmem_limit_kib=limit)
