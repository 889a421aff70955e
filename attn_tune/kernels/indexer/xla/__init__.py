"""The indexer left to XLA: every feature, on every platform."""

from collections.abc import Iterator

from attn_tune.kernels.indexer.xla.config import Config
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.ops.indexer.problem import Problem
from attn_tune.schema.device import Device
from attn_tune.schema.direction import WHOLE

_ROWS = (1, 4, 16, 64, 256, 1024)
# Products of one step, in float32.
_STEP_BYTES = 2**28


def _heuristic(problem: Problem, device: Device) -> Config:
    each = problem.num_q_heads * problem.kv_len * 4
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
    op="indexer",
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
    summary="products of some queries with all keys, then their weighed sum, compiled by XLA; on every platform",
)
