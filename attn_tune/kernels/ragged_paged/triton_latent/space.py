"""Problems and devices that the kernel does not support, and the configs worth trying."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator

from attn_tune.kernels.lang.space import nearest_feasible
from attn_tune.kernels.lang.triton.cache_limits import certainly_fits, refuses_problem, refuses_tile
from attn_tune.kernels.lang.triton.limits import refuses_cache, refuses_latents
from attn_tune.kernels.lang.triton.tiles import block_cap, fitted
from attn_tune.kernels.ragged_paged._triton.space import (
    adapted_programs,
    other_decoding,
    refuses_decoding,
    with_decoding,
)
from attn_tune.kernels.ragged_paged.triton_latent.config import Config
from attn_tune.ops.fields.cache import BLOCK, LATENT, SAME
from attn_tune.ops.ragged_paged.problem import Problem
from attn_tune.schema.device import Device

# Rows of a tile. Of 16-bit latents both were timed (H200, 576 columns): 64 rows take 1.06 to 1.15 times as long. More
# rows share a tile of codes once it is converted; those were not timed.
_MOST_ROWS, _MOST_ROWS_OF_CODES = 32, 64
# Heads up to which tokens of their own are decoded by a launch of their own: more of them fill a tile here.
_MOST_DECODED = 32


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device at all, or None."""
    if reason := refuses_problem(problem, device, read="queries") or refuses_cache(problem.kv_dtype, device):
        return reason
    if problem.layout != LATENT:
        return f"it walks latents, whose values are columns of keys; layout is {problem.layout}"
    return refuses_latents(problem, device)


def infeasible(problem: Problem, device: Device, config: Config) -> str | None:
    """The reason that a config cannot fit the device, or None. Never refuses what compiles and fits."""
    if problem.kv_scale == BLOCK and config.decode_programs is not None:
        return f"decode_programs={config.decode_programs} reads no latents with scales of blocks; leave None"
    return refuses_decoding(problem, device, config) or refuses_tile(problem, device, config)


def heuristic(problem: Problem, device: Device) -> Config:
    """The untuned config: a tile by what was timed, as far as it fits, and a launch that decodes where few heads do."""
    most = _MOST_ROWS if problem.kv_dtype == SAME else _MOST_ROWS_OF_CODES
    rows = min(most, block_cap(max(new for new, _ in problem.sequences) * problem.num_q_heads))
    tile = Config(
        block_q=rows,
        block_k=min(64, block_cap(problem.kv_len)),
        num_warps=8 if rows > 32 else 4,
        num_stages=3,
    )
    tile = fitted(tile, functools.partial(_fits, problem, device))
    is_decoded = problem.num_q_heads <= _MOST_DECODED and problem.kv_scale != BLOCK
    return with_decoding(problem, device, tile) if is_decoded else tile


def adapt(tuned: Problem, problem: Problem, device: Device, config: Config) -> Config:
    """The config of ``tuned`` for ``problem``: as many programs that decode as there."""
    return dataclasses.replace(
        config,
        block_k=min(config.block_k, block_cap(problem.kv_len)),
        decode_programs=adapted_programs(tuned, problem, config),
    )


def candidates(problem: Problem, device: Device) -> tuple[Config, ...]:
    """Tiles of rows with the untuned launch that decodes, and others of it with the untuned tile."""
    start = heuristic(problem, device)
    return nearest_feasible(
        start,
        _all(problem, device, start),
        functools.partial(infeasible, problem, device),
        doubling=("block_q", "block_k", "num_warps", "num_stages", "decode_block_k"),
    )


def _all(problem: Problem, device: Device, start: Config) -> Iterator[Config]:
    most = block_cap(problem.tokens * problem.num_q_heads)
    for block_q, block_k in itertools.product((16, 32, 64, 128), (16, 32, 64, 128)):
        if block_q > most or block_k > block_cap(problem.kv_len):
            continue
        for warps, stages in itertools.product((4, 8) if block_q <= 64 else (8, 16), (2, 3, 4)):
            sizes = {"block_q": block_q, "block_k": block_k, "num_warps": warps, "num_stages": stages}
            yield dataclasses.replace(start, **sizes)
    yield from other_decoding(problem, device, start)


def _fits(problem: Problem, device: Device, config: Config) -> bool:
    """Whether an untuned choice of this tile certainly runs."""
    return certainly_fits(problem, device, config) and infeasible(problem, device, config) is None
