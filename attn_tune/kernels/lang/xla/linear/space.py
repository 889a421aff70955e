"""The configs that the XLA kernel may take, and the one it takes untuned."""

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.recurrent import refuses_gradients
from attn_tune.kernels.lang.space import first_feasible, nearest_feasible
from attn_tune.kernels.lang.xla.linear.config import (
    BackwardConfig,
    DeltaBackwardConfig,
    DeltaForwardConfig,
    ForwardConfig,
)
from attn_tune.ops.recurrent.problem import RecurrentProblem as Problem
from attn_tune.schema.device import Device

# Up to so many tokens may be taken one by one. Untuned it is one alone: a CPU takes eight in a tile six times as fast.
FEW_TOKENS, UNTUNED = 8, 1
# The arrays of a step, as long as a row of values or of pairs of tokens; more do not fit beside the model.
MAX_STEP_BYTES = 2**32
_ARRAYS = 8
# The states that a backward keeps.
MAX_STATE_BYTES = 2**35


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that nothing can do the problem, or None: this kernel can do everything else."""
    return refuses_gradients(problem, direction)


def infeasible(problem: Problem, device: Device, config: ForwardConfig | BackwardConfig) -> str | None:
    """The reason that a config cannot run: what a step holds does not fit, or the states between steps."""
    p = problem
    if config.chunk == 1:
        return None
    if config.products == "working" and _is_step(p, type(config)):
        return f"products=working would round states to {p.dtype} at each step of decoding"
    heads = p.rows[0] * p.num_value_heads
    # With a gate per channel, every level of halving holds its own decayed queries and keys.
    rows = p.head_dim * (config.chunk.bit_length() if p.gate == "channel" else 1)
    step = 4 * heads * config.tiles * config.chunk * _ARRAYS * (config.chunk + rows + p.v_head_dim)
    if step > MAX_STEP_BYTES:
        return f"a step takes {step / 2**30:.1f} GiB; the limit is {MAX_STEP_BYTES / 2**30:.0f} GiB"
    if isinstance(config, BackwardConfig):
        states = 4 * heads * p.head_dim * p.v_head_dim * -(-p.length // (config.tiles * config.chunk))
        if states > MAX_STATE_BYTES:
            return f"states take {states / 2**30:.1f} GiB; the limit is {MAX_STATE_BYTES / 2**30:.0f} GiB"
    return None


def forward_heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """Token by token for one, otherwise tiles."""
    return _one_by_one(problem) if _tokens(problem) <= UNTUNED else _tiled(_forward(problem), problem, device)


def backward_heuristic(problem: Problem, device: Device) -> BackwardConfig:
    """Tiles, for a few tokens too."""
    return _tiled(DeltaBackwardConfig if problem.has_delta else BackwardConfig, problem, device)


def forward_candidates(problem: Problem, device: Device) -> Iterator[ForwardConfig]:
    """Every combination of knobs, the nearest to the untuned one first; token by token where there are a few."""
    tiled = _candidates(_tiled(_forward(problem), problem, device), problem, device)
    one_by_one = (_one_by_one(problem),) if _tokens(problem) <= FEW_TOKENS else ()
    yield from one_by_one + tiled if _tokens(problem) <= UNTUNED else tiled + one_by_one


def backward_candidates(problem: Problem, device: Device) -> Iterator[BackwardConfig]:
    """Every combination of knobs, the nearest to the untuned one first."""
    yield from _candidates(backward_heuristic(problem, device), problem, device)


def adapt[C: ForwardConfig | BackwardConfig](tuned: Problem, problem: Problem, device: Device, config: C) -> C:
    """The config of a near problem with no more tiles than the tokens fill."""
    return dataclasses.replace(config, tiles=min(config.tiles, _counts(problem, config.chunk)[-1]))


def _forward(problem: Problem) -> type[ForwardConfig]:
    return DeltaForwardConfig if problem.has_delta else ForwardConfig


def _one_by_one(problem: Problem) -> ForwardConfig:
    return _forward(problem)(chunk=1)


def _candidates[C: ForwardConfig | BackwardConfig](start: C, problem: Problem, device: Device) -> tuple[C, ...]:
    make: Any = type(start)
    configs = [
        make(chunk=chunk, tiles=tiles, products=products, **solve)
        for chunk in _chunks(problem)
        for tiles in _counts(problem, chunk)
        for solve in _solves(problem, device)
        for products in _products(problem, make)
    ]
    return nearest_feasible(start, configs, partial(infeasible, problem, device), doubling=("chunk", "tiles"))


def _tiled[C: ForwardConfig | BackwardConfig](config: type[C], problem: Problem, device: Device) -> C:
    """The untuned tiles: as many together as keep an accelerator busy, with products as its matrix units like them."""
    is_cpu = device.platform == "cpu"
    make: Any = config
    chunk = min(_chunks(problem)[-1], 32 if is_cpu else 64)
    wanted = 4 if is_cpu else max(1, 1024 // (problem.rows[0] * problem.num_value_heads))
    counts = [n for n in _counts(problem, chunk) if n <= wanted]
    products = "float32" if is_cpu else _products(problem, make)[-1]
    configs = [make(chunk=chunk, tiles=n, products=products) for n in reversed(counts)]
    return first_feasible((*configs, make(chunk=min(_chunks(problem)))), partial(infeasible, problem, device))


def _solves(problem: Problem, device: Device) -> list[dict[str, str]]:
    """The ways worth trying: row after row XLA takes a hundred times as long on a CPU."""
    if not problem.has_delta:
        return [{}]
    ways = ("doubling",) if device.platform == "cpu" else tried(DeltaForwardConfig, "solve")
    return [{"solve": way} for way in ways]


def _counts(problem: Problem, chunk: int) -> list[int]:
    """The numbers of tiles that the tokens fill."""
    most = -(-problem.length // chunk)
    return [n for n in tried(ForwardConfig, "tiles") if n <= most]


def _products(problem: Problem, config: type[ForwardConfig | BackwardConfig]) -> tuple[str, ...]:
    is_wide = problem.dtype == "float32" or _is_step(problem, config)
    return ("float32",) if is_wide else ("float32", "working")


def _is_step(problem: Problem, config: type[ForwardConfig | BackwardConfig]) -> bool:
    """Whether the states must stay as exact as they are stored."""
    return problem.is_decoding and problem.dtype != "float32" and issubclass(config, ForwardConfig)


def _chunks(problem: Problem) -> list[int]:
    """Tiles up to the first that holds a sequence of average length; the shortest for short sequences alone."""
    sizes = tried(ForwardConfig, "chunk")
    most = next((c for c in sizes if c >= _tokens(problem)), sizes[-1])
    return [c for c in sizes if c <= most and (c > sizes[0] or most == sizes[0])]


def _tokens(p: Problem) -> int:
    """The tokens of a sequence; of a ragged call the average."""
    return -(-p.length // p.batch) if p.ragged else p.length
