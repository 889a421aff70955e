"""The configs worth trying, nearest to the untuned choice first, and the search that kernels declare."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.pallas_tpu.estimates import limit_between
from attn_tune.kernels.lang.pallas_tpu.memory import limit_reason
from attn_tune.kernels.lang.pallas_tpu.ragged import limits
from attn_tune.kernels.lang.pallas_tpu.ragged.blocks import expected_bytes, vmem_bytes
from attn_tune.kernels.lang.pallas_tpu.ragged.config import Config
from attn_tune.kernels.lang.space import first_feasible, nearest_feasible
from attn_tune.kernels.spec import Search
from attn_tune.schema.device import Device
from attn_tune.schema.direction import WHOLE

# An untuned block: keys and pages, and queries where many belong to one sequence and where each has few. Of the winners
# in the library's own table for v5 and v6 (jax 0.12.0.1) all have 4 to 16 pages, and two thirds have 32 queries.
_KEYS, _PAGES, _QUERIES, _FEW = 1024, 16, 32, 8
# Those queries are many.
_MANY = 16


def search(call: str, tokens: Callable[[Any], int]) -> Search:
    """The search of a kernel.

    Args:
      call: the path of its call.
      tokens: gives the queries of all sequences of a problem.
    """

    def infeasible(problem: Any, device: Device, config: Config) -> str | None:
        return limits.infeasible(problem, device, config, tokens(problem))

    return Search(
        config=Config,
        heuristic=lambda problem, device: heuristic(problem, device, tokens(problem)),
        candidates={WHOLE: lambda problem, device: candidates(problem, device, tokens(problem))},
        infeasible=infeasible,
        adapt=lambda tuned, problem, device, config: adapt(problem, device, config, tokens(problem)),
        call=call,
        # Larger blocks take more VMEM.
        grows=("num_kv_pages_per_block", "num_queries_per_block"),
    )


def heuristic(problem: Any, device: Device, tokens: int) -> Config:
    """The untuned config: up to a thousand keys or sixteen pages that fit, and queries by how many a sequence has."""
    p = problem
    queries = min(_QUERIES if tokens >= _MANY * p.batch else _FEW, limits.most_queries(tokens))
    pages = min(max(1, _KEYS // p.page_size), _PAGES, p.input_width)
    sizes = [1 << n for n in range(pages.bit_length() - 1, -1, -1)]
    fewer = [q for q in (queries, queries // 2, queries // 4, 8) if q >= 8]
    # Short of VMEM the walk is shortened before the rows are.
    blocks = (Config(num_kv_pages_per_block=n, num_queries_per_block=q) for q in fewer for n in sizes)
    configs = (_limited(p, device, config) for config in blocks)

    def reason(config: Config) -> str | None:
        short = limit_reason(device, expected_bytes(p, config), config.vmem_limit_kib)
        return short or limits.infeasible(p, device, config, tokens)

    return first_feasible(configs, reason)


def adapt(problem: Any, device: Device, config: Config, tokens: int) -> Config:
    """The config with no more pages than a sequence has and no more rows than there are, and the limit it needs."""
    fitted = dataclasses.replace(
        config,
        num_kv_pages_per_block=min(config.num_kv_pages_per_block, 1 << (problem.input_width.bit_length() - 1)),
        num_queries_per_block=min(config.num_queries_per_block, limits.most_queries(tokens)),
    )
    return _limited(problem, device, fitted)


def candidates(problem: Any, device: Device, tokens: int) -> tuple[Config, ...]:
    """Blocks of all sizes that fit."""
    start = heuristic(problem, device, tokens)
    reason = functools.partial(limits.infeasible, problem, device, tokens=tokens)
    names = ("num_kv_pages_per_block", "num_queries_per_block")
    return nearest_feasible(start, _all(problem, device), reason, doubling=names)


def _all(problem: Any, device: Device) -> Iterator[Config]:
    pages, queries = (tried(Config, name) for name in ("num_kv_pages_per_block", "num_queries_per_block"))
    for n, q in itertools.product(pages, queries):
        yield _limited(problem, device, Config(num_kv_pages_per_block=n, num_queries_per_block=q))


def _limited(problem: Any, device: Device, config: Config) -> Config:
    limit = limit_between(device, vmem_bytes(problem, config), expected_bytes(problem, config))
    return dataclasses.replace(config, vmem_limit_kib=limit)
