"""Problems that no tile of queries can do, and configs worth trying, of the kernels that share ``prefill``."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator

from attn_tune.kernels.lang.space import nearest_first
from attn_tune.kernels.lang.triton.cache_limits import certainly_fits, refuses_problem, refuses_tile
from attn_tune.kernels.lang.triton.tiles import block_cap, fitted
from attn_tune.kernels.ragged_paged._triton.config import TileConfig
from attn_tune.kernels.ragged_paged._triton.space import (
    adapted_programs,
    other_decoding,
    refuses_decoding,
    with_decoding,
)
from attn_tune.kernels.spec import Search
from attn_tune.ops.fields.cache import CODES, LATENT
from attn_tune.ops.ragged_paged.problem import Problem
from attn_tune.schema.device import Device
from attn_tune.schema.direction import WHOLE

# Keys from which on a walk is long.
_LONG = 16384
# A key/value head's group fits the largest tile.
_MOST_GROUP = 128


def search(call: str) -> Search:
    """The search of a kernel whose function is at the path ``call``."""
    return Search(
        config=TileConfig,
        heuristic=heuristic,
        candidates={WHOLE: candidates},
        infeasible=infeasible,
        adapt=adapt,
        call=call,
        # Larger tiles take more shared memory and more registers, more stages more shared memory.
        grows=("block_q", "block_k", "num_stages", "decode_block_k"),
    )


def refuses(problem: Problem, device: Device) -> str | None:
    """The reason that no tile of queries can do the problem on this device at all, or None."""
    if reason := refuses_problem(problem, device, read="queries"):
        return reason
    if problem.layout == LATENT:
        return "it reads keys and values apart; layout=latent has values within keys"
    if problem.group_size > _MOST_GROUP:
        return f"{problem.group_size} query heads share a key head: a tile holds {_MOST_GROUP} at most"
    return None


def infeasible(problem: Problem, device: Device, config: TileConfig) -> str | None:
    """The reason that a config cannot fit the device, or None. Never refuses what compiles and fits."""
    if config.block_q < problem.group_size:
        return f"block_q={config.block_q} is less than the {problem.group_size} query heads of a key head"
    return refuses_decoding(problem, device, config) or refuses_tile(problem, device, config)


def heuristic(problem: Problem, device: Device) -> TileConfig:
    """The untuned config: the tile that is best on an H200, and a launch that decodes where sequences do."""
    wide = max(problem.head_dim, problem.v_head_dim) > 128 or problem.dtype == "float32"
    block_k = min(32 if wide else 64, block_cap(problem.kv_len))
    queries = [new for new, _ in problem.sequences]
    # More rows share what was dequantised, the numbers of pages where a tile of keys has several, and long walks.
    has_codes = problem.cache_dtype in CODES and problem.kv_scale != "token"
    is_scattered = problem.page_size % block_k > 0
    most = 128 if not wide and (has_codes or is_scattered or problem.kv_len >= _LONG) else 64
    rows = max(block_cap(problem.group_size), min(most, block_cap(max(queries) * problem.group_size)))
    tile = TileConfig(
        block_q=rows,
        block_k=block_k,
        num_warps=4,
        num_stages=3,
    )
    tile = fitted(tile, functools.partial(_fits, problem, device))
    return with_decoding(problem, device, tile)


def adapt(tuned: Problem, problem: Problem, device: Device, config: TileConfig) -> TileConfig:
    """The config of ``tuned`` for ``problem``: as many programs a multiprocessor as there."""
    return dataclasses.replace(
        config,
        block_q=max(config.block_q, block_cap(problem.group_size)),
        block_k=min(config.block_k, block_cap(problem.kv_len)),
        decode_programs=adapted_programs(tuned, problem, config),
    )


def candidates(problem: Problem, device: Device) -> tuple[TileConfig, ...]:
    """Tiles of queries with the untuned launch that decodes, and others of it with the untuned tile."""
    start = heuristic(problem, device)
    feasible = (c for c in _all(problem, device, start) if infeasible(problem, device, c) is None)
    return nearest_first(start, feasible, doubling=("block_q", "block_k", "num_warps", "num_stages", "decode_block_k"))


def _all(problem: Problem, device: Device, start: TileConfig) -> Iterator[TileConfig]:
    most = problem.tokens * problem.group_size
    for block_q, block_k in itertools.product((16, 32, 64, 128, 256), (16, 32, 64, 128)):
        if block_q > block_cap(most) or block_k > block_cap(problem.kv_len):
            continue
        for warps, stages in itertools.product((2, 4) if block_q <= 32 else (4, 8), (2, 3, 4)):
            sizes = {"block_q": block_q, "block_k": block_k, "num_warps": warps, "num_stages": stages}
            yield dataclasses.replace(start, **sizes)
    yield from other_decoding(problem, device, start)


def _fits(problem: Problem, device: Device, config: TileConfig) -> bool:
    """Whether an untuned choice of this tile certainly runs."""
    return certainly_fits(problem, device, config) and infeasible(problem, device, config) is None
