"""The configs that the XLA kernel may take, and the one it takes untuned."""

from collections.abc import Iterator

from attn_tune.kernels.native_sparse_attention.xla.config import Config
from attn_tune.ops.native_sparse_attention.problem import Problem
from attn_tune.schema.device import Device

_ROWS = (1, 4, 16, 64, 256, 1024)
# Gathered keys and values and logits of one step: what caches of a CPU hold, and what fills an accelerator.
_CPU_BYTES, _ACCELERATOR_BYTES = 2**22, 2**27


def heuristic(problem: Problem, device: Device) -> Config:
    """The most queries whose keys and logits fit the device's sweet spot."""
    p = problem
    pairs = p.num_kv_heads * p.num_selected * p.block_size
    each = pairs * 4 * (p.head_dim + p.v_head_dim + 2 * p.group_size)
    budget = _CPU_BYTES if device.platform == "cpu" else _ACCELERATOR_BYTES
    fitting = [rows for rows in _ROWS if rows * each <= budget and rows <= p.rows * p.q_len]
    return Config(rows=max(fitting, default=1))


def candidates(problem: Problem, device: Device) -> Iterator[Config]:
    """Numbers of queries about that of the untuned choice."""
    start = heuristic(problem, device)
    yield start
    for rows in _ROWS:
        if rows != start.rows and start.rows / 16 <= rows <= min(problem.rows * problem.q_len, 16 * start.rows):
            yield Config(rows=rows)
