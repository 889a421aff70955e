"""Decoding over a cache left to XLA: every feature, on every platform."""

from collections.abc import Iterator

from attn_tune.kernels.paged_decode.xla.config import Config
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.ops.paged_decode.problem import Problem
from attn_tune.schema.device import Device
from attn_tune.schema.direction import WHOLE

_STEPS = (128, 512, 2048, 8192, 32768)
# Gathered keys and values of one step: more are read from memory once again.
_STEP_BYTES = 2**26


def _heuristic(problem: Problem, device: Device) -> Config:
    width = problem.batch * problem.num_kv_heads * (problem.head_dim + problem.v_head_dim) * 4
    fitting = [step for step in _STEPS if step * width <= _STEP_BYTES and step < problem.kv_len]
    return Config(step=max(fitting, default=_STEPS[0]))


def _candidates(problem: Problem, device: Device) -> Iterator[Config]:
    start = _heuristic(problem, device)
    yield start
    for step in _STEPS:
        if step != start.step and (step < problem.kv_len or step == _STEPS[0]):
            yield Config(step=step)


SPEC = KernelSpec(
    op="paged_decode",
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
    summary="decoding in steps of gathered keys, compiled by XLA; every feature, on every platform",
)
