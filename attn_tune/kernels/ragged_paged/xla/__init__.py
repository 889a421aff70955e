"""Ragged attention left to XLA: every feature, on every platform."""

import dataclasses
from collections.abc import Iterator

from attn_tune.kernels.ragged_paged.xla.config import Config
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.ops.ragged_paged.problem import Problem
from attn_tune.schema.device import Device
from attn_tune.schema.direction import WHOLE

# Logits of one step, in float32: more are written to memory and read again.
_STEP_BYTES = 2**26
_TILES, _STEPS = (1, 4, 16, 64), (128, 512, 2048, 8192)


def _heuristic(problem: Problem, device: Device) -> Config:
    block_q = 1
    while block_q < min(128, problem.tokens // problem.batch):
        block_q *= 2
    fitting = [
        Config(block_q=block_q, tiles=tiles, step=step)
        for step in _STEPS
        for tiles in _TILES
        if tiles <= problem.batch and step <= max(_STEPS[0], problem.kv_len)
        if 4 * problem.num_q_heads * block_q * tiles * step <= _STEP_BYTES
    ]
    return max(fitting, key=lambda c: (c.tiles * c.step, c.tiles), default=Config(block_q=1, tiles=1, step=_STEPS[0]))


def _candidates(problem: Problem, device: Device) -> Iterator[Config]:
    start = _heuristic(problem, device)
    yield start
    for step in _STEPS:
        if step != start.step and (step < problem.kv_len or step == _STEPS[0]):
            yield dataclasses.replace(start, step=step)
    for tiles in _TILES:
        if tiles != start.tiles and tiles <= problem.batch:
            yield dataclasses.replace(start, tiles=tiles)
    for block_q in (16, 32, 64, 128, 256):
        if block_q != start.block_q and block_q <= problem.tokens:
            yield dataclasses.replace(start, block_q=block_q)


SPEC = KernelSpec(
    op="ragged_paged",
    name="xla",
    backend="xla",
    searches={
        "fwd": Search(
            config=Config,
            heuristic=_heuristic,
            candidates={WHOLE: _candidates},
            call=f"{__name__}.kernel:forward",
        )
    },
    unsupported=lambda problem, direction, device: None,
    summary="ragged attention in tiles over gathered keys, compiled by XLA; every feature, on every platform",
)
