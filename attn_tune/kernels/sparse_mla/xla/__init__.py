"""Sparse latent attention left to XLA: every feature, on every platform."""

from collections.abc import Iterator

from attn_tune.kernels.sparse_mla.xla.config import Config
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.ops.sparse_mla.problem import Problem
from attn_tune.schema.device import Device
from attn_tune.schema.direction import WHOLE

_ROWS = (1, 4, 16, 64, 256, 1024)
# Gathered keys and logits of one step.
_STEP_BYTES = 2**27


def _heuristic(problem: Problem, device: Device) -> Config:
    each = problem.num_selected * 4 * (problem.head_dim + 2 * problem.num_q_heads)
    queries = problem.batch * problem.q_len
    fitting = [rows for rows in _ROWS if rows * each <= _STEP_BYTES and rows <= queries]
    return Config(rows=max(fitting, default=1))


def _candidates(problem: Problem, device: Device) -> Iterator[Config]:
    start = _heuristic(problem, device)
    yield start
    for rows in _ROWS:
        if rows != start.rows and start.rows / 16 <= rows <= min(problem.batch * problem.q_len, 16 * start.rows):
            yield Config(rows=rows)


SPEC = KernelSpec(
    op="sparse_mla",
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
    summary="sparse latent attention over gathered keys, some queries at a time, compiled by XLA; on every platform",
)
