"""The walk of attention's kernels over the blocks of the score matrix (``Op.walk``).

All kernels walk alike: one side's block rests in VMEM while the other side's blocks pass, and blocks that the mask
hides whole are skipped. Their names and knobs say which side rests and how large the blocks are.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from attn_tune.ops.cost_walk import CostWalk, Walk
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.config import is_mapping

_LANES = 128
_ROW_KNOBS = ("block_q_major", "block_q")
_COLUMN_KNOBS = ("block_k_major", "block_kv", "block_k")
_FLOAT_BYTES = 4
# What JAX's own TPU kernels use by default.
_DEFAULT_BLOCK = 128
_DEFAULT_LAYOUT = "head_dim_minor"


def walk_of(launch: str, problem: Problem, config: Mapping[str, Any]) -> Walk | None:
    """Counts the blocks of a launch over all heads; None when the config has no blocks."""
    part = next((name for name in ("dkv", "dq") if name in launch), "")
    knobs = config.get(part, config) if part else config
    block_q, block_k = _knob(knobs, _ROW_KNOBS), _knob(knobs, _COLUMN_KNOBS)
    if block_q is None or block_k is None:
        return None
    block_q, block_k = min(block_q, _up(problem.q_len)), min(block_k, _up(problem.kv_len))
    rows, columns = -(-problem.q_len // block_q), -(-problem.kv_len // block_k)
    heads = problem.batch * problem.num_q_heads
    size = _FLOAT_BYTES if problem.dtype == "float32" else 2
    tokens = size * (_width(problem.head_dim) + _width(problem.v_head_dim))
    q_bytes, k_bytes = block_q * tokens, block_k * tokens
    visits = heads * visible_blocks(problem, block_q, block_k)
    whole = heads * whole_blocks(problem, block_q, block_k)
    if part == "dkv":
        # q and dout pass, with lse and delta; k, v rest and dk, dv leave.
        row_sums = 2 * block_q * _FLOAT_BYTES
        passing, resting, rests = q_bytes + row_sums, 2 * k_bytes, heads * columns
        still = rows == 1
    else:
        outputs = size * _width(problem.head_dim) if part else _FLOAT_BYTES * _LANES
        passing, resting, rests = k_bytes, q_bytes + block_q * outputs, heads * rows
        still = columns == 1
    if still:
        # A block that is all there is of its side stays until the head changes.
        resting, passing = resting + passing, 0
    return Walk(
        steps=heads * rows * columns,
        visits=visits,
        cut=visits - whole,
        rests=rests,
        visit_bytes=passing,
        rest_bytes=resting,
    )


def longer(problem: Problem) -> Iterator[Problem]:
    """Variants with twice the lengths, which a causal edge ties together, twice the batch, or both."""
    lengths = {"q_len": 2 * problem.q_len, "kv_len": 2 * problem.kv_len}
    batch = {"batch": 2 * problem.batch}
    for sizes in (lengths, batch, {**batch, **lengths}):
        yield replace(problem, **sizes)


def is_default(config: Mapping[str, Any]) -> bool:
    """Whether there are blocks, every block is JAX's default, and every layout too."""
    blocks = _blocks(config)
    layouts = [value for name, value in _knobs(config) if name.endswith("_layout")]
    return (
        bool(blocks)
        and all(block == _DEFAULT_BLOCK for block in blocks)
        and all(layout == _DEFAULT_LAYOUT for layout in layouts)
    )


def has_single_block(config: Mapping[str, Any], problem: Problem) -> bool:
    """Whether a block is as long as the queries or the keys."""
    return any(block in (problem.q_len, problem.kv_len) for block in _blocks(config))


WALK = CostWalk(of_launch=walk_of, longer=longer, is_default=is_default, has_single_block=has_single_block)


def visible_blocks(problem: Problem, block_q: int, block_k: int) -> int:
    """Blocks of one head in which some row sees some column."""
    left, right = problem.bounds
    columns = -(-problem.kv_len // block_k)
    seen = 0
    for first in range(0, problem.q_len, block_q):
        last = min(first + block_q, problem.q_len) - 1
        low = 0 if left is None else max(0, first + problem.offset - left)
        high = problem.kv_len - 1
        if right is not None:
            high = min(high, last + problem.offset + right)
        if high >= low:
            seen += min(columns - 1, high // block_k) - low // block_k + 1
    return seen


def whole_blocks(problem: Problem, block_q: int, block_k: int) -> int:
    """Blocks of one head in which every row sees every column."""
    left, right = problem.bounds
    whole = 0
    for first in range(0, problem.q_len, block_q):
        last = min(first + block_q, problem.q_len) - 1
        low = 0 if left is None else max(0, last + problem.offset - left)
        high = problem.kv_len - 1
        if right is not None:
            high = min(high, first + problem.offset + right)
        starts = range(0, problem.kv_len, block_k)
        ends = (min(start + block_k, problem.kv_len) - 1 for start in starts)
        whole += sum(low <= s and e <= high for s, e in zip(starts, ends, strict=True))
    return whole


def _knob(knobs: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((knobs[name] for name in names if isinstance(knobs.get(name), int)), None)


def _up(length: int) -> int:
    return -(-length // _LANES) * _LANES


def _width(head_dim: int) -> int:
    """A head in HBM fills whole rows of lanes."""
    return -(-head_dim // _LANES) * _LANES


def _blocks(config: Mapping[str, Any]) -> list[Any]:
    """The sizes of blocks along lengths; a block of sequences is none."""
    knobs = _knobs(config)
    return [value for name, value in knobs if name.startswith("block_") and name != "block_b"]


def _knobs(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """All knobs, those of each part too."""
    for name, value in config.items():
        if is_mapping(value):
            yield from _knobs(value)
        else:
            yield name, value
