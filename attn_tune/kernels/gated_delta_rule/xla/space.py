"""The configs that the XLA kernel may take, and the one it takes untuned."""

import itertools
from collections.abc import Iterator
from typing import Any

from attn_tune.kernels.gated_delta_rule.xla.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.space import nearest_feasible
from attn_tune.ops.gated_delta_rule.problem import Problem
from attn_tune.schema.device import Device

# So few tokens are taken one by one.
FEW_TOKENS = 8
# The arrays of a step, as long as a row of values or of pairs of tokens; more do not fit beside the model.
MAX_STEP_BYTES = 2**32
_ARRAYS = 8
# The states that a backward keeps.
MAX_STATE_BYTES = 2**35


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """Always None: this kernel is the one that can do everything."""
    return None


def infeasible(problem: Problem, device: Device, config: ForwardConfig | BackwardConfig) -> str | None:
    """The reason that a config cannot run: what a step holds does not fit, or the states between steps."""
    p = problem
    if config.chunk == 1:
        return None
    heads = p.rows[0] * p.num_value_heads
    step = 4 * heads * config.tiles * config.chunk * _ARRAYS * (config.chunk + p.head_dim + p.v_head_dim)
    if step > MAX_STEP_BYTES:
        return f"a step takes {step / 2**30:.1f} GiB; the limit is {MAX_STEP_BYTES / 2**30:.0f} GiB"
    if isinstance(config, BackwardConfig):
        states = 4 * heads * p.head_dim * p.v_head_dim * -(-p.length // (config.tiles * config.chunk))
        if states > MAX_STATE_BYTES:
            return f"states take {states / 2**30:.1f} GiB; the limit is {MAX_STATE_BYTES / 2**30:.0f} GiB"
    return None


def forward_heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """Token by token for a few tokens, otherwise tiles."""
    return ForwardConfig(chunk=1) if _tokens(problem) <= FEW_TOKENS else _tiled(ForwardConfig, problem, device)


def backward_heuristic(problem: Problem, device: Device) -> BackwardConfig:
    """Tiles, for a few tokens too."""
    return _tiled(BackwardConfig, problem, device)


def forward_candidates(problem: Problem, device: Device) -> Iterator[ForwardConfig]:
    """Every combination of knobs, the nearest to the untuned one first; token by token where there are a few."""
    start = forward_heuristic(problem, device)
    if start.chunk == 1:
        yield start
    yield from _candidates(_tiled(ForwardConfig, problem, device), problem, device)


def backward_candidates(problem: Problem, device: Device) -> Iterator[BackwardConfig]:
    """Every combination of knobs, the nearest to the untuned one first."""
    yield from _candidates(backward_heuristic(problem, device), problem, device)


def _candidates[C: ForwardConfig | BackwardConfig](start: C, problem: Problem, device: Device) -> tuple[C, ...]:
    config: Any = type(start)
    counts = sorted({min(n, -(-problem.length // start.chunk)) for n in tried(config, "tiles")})
    configs = [
        config(chunk=chunk, tiles=tiles, solve=solve, products=products)
        for chunk, tiles, solve, products in itertools.product(
            _chunks(problem, device), counts, tried(config, "solve"), _products(problem)
        )
    ]
    return nearest_feasible(
        start, configs, lambda config: infeasible(problem, device, config), doubling=("chunk", "tiles")
    )


def _tiled[C: ForwardConfig | BackwardConfig](config: type[C], problem: Problem, device: Device) -> C:
    """The untuned tiles: as many together as keep an accelerator busy, of products as its matrix units like them."""
    is_cpu = device.platform == "cpu"
    chunk = min(_chunks(problem, device)[-1], 64)
    wanted = 1 if is_cpu else max(1, 1024 // (problem.rows[0] * problem.num_value_heads))
    fitting = [n for n in tried(config, "tiles") if n <= min(wanted, -(-problem.length // chunk))]
    start: Any = config
    for tiles in reversed(fitting or [1]):
        found = start(
            chunk=chunk,
            tiles=tiles,
            solve="substitution" if is_cpu else "doubling",
            products="float32" if is_cpu else _products(problem)[-1],
        )
        if infeasible(problem, device, found) is None:
            return found
    return start(chunk=min(_chunks(problem, device)))


def _products(problem: Problem) -> tuple[str, ...]:
    return ("float32",) if problem.dtype == "float32" else ("float32", "working")


def _chunks(problem: Problem, device: Device) -> list[int]:
    """Tiles up to the first that holds a sequence of average length."""
    all_chunks = sorted(tried(ForwardConfig, "chunk"))
    return [c for i, c in enumerate(all_chunks) if i == 0 or all_chunks[i - 1] < _tokens(problem)]


def _tokens(p: Problem) -> int:
    """The tokens of a sequence; of a ragged call the average."""
    return -(-p.length // p.batch) if p.ragged else p.length
