"""Estimates of the VMEM and scalar memory of a launch of splash attention."""

from typing import NamedTuple

from attn_tune.kernels.flash_attention._splash.config import (
    SEQ_MINOR,
    ComputedLaunch,
    DqLaunch,
    ForwardLaunch,
    FusedLaunch,
    Launch,
)
from attn_tune.kernels.flash_attention._splash.extent import Extent, table_itemsize
from attn_tune.kernels.lang.pallas_tpu.memory import LANES, SUBLANES, tiled_bytes
from attn_tune.kernels.lang.pallas_tpu.scalars import table_bytes
from attn_tune.ops.flash_attention.problem import Problem

_FLOAT32 = 4


class _Spills(NamedTuple):
    """Copies in float32 that a step leaves in VMEM at most, where its registers do not hold them.

    Attributes:
      logits: of one product's logits, ``capped`` more with a soft cap.
      outputs, queries: of rows as wide as values, and as queries.
      keys, values: of the keys and the values of a block.
    """

    logits: float
    capped: float
    outputs: float
    queries: float
    keys: float
    values: float


# A little above what libtpu 0.0.52 took of 240 launches on v4, v5e, v5p, v6e and v7x, heads of 64 to 256, 16 and 32
# bits, their operands in HBM: fitted from above by a linear program.
_FORWARD_SPILLS = _Spills(logits=1.25, capped=0, outputs=0.875, queries=0, keys=1.0, values=0.5)
_DQ_SPILLS = _Spills(logits=1.25, capped=0.625, outputs=0.5, queries=0.875, keys=0, values=0.75)
_DKV_SPILLS = _Spills(logits=1.875, capped=0.875, outputs=0.375, queries=0.75, keys=0.5, values=0)


def vmem_bytes(problem: Problem, launch: Launch) -> int:
    """A low estimate of the VMEM, above which a launch is refused."""
    return _block_bytes(problem, launch) + _logits_bytes(problem, launch)


def expected_bytes(problem: Problem, launch: Launch) -> int:
    """A high estimate of the VMEM, which untuned launches and limits are chosen by: they are not compiled first."""
    return _block_bytes(problem, launch) + max(_logits_bytes(problem, launch), _spilled_bytes(problem, launch))


def _block_bytes(problem: Problem, launch: Launch) -> int:
    """Two copies of each block that passes, and the accumulators."""
    passing = _operand_bytes(problem, launch) + _mask_bytes(problem, launch)
    if isinstance(launch, ForwardLaunch):
        passing += _forward_bytes(problem, launch)
    else:
        passing += _gradient_bytes(problem, launch)
    return 2 * passing + _scratch_bytes(problem, launch)


def smem_bytes(problem: Problem, launch: Launch) -> int:
    """Scalar memory of the tables of visited blocks, prefetched whole: never below what ``Schedule`` makes of them."""
    extent = Extent(problem=problem, block_q=launch.block_q, block_kv=launch.block_kv)
    if not extent.is_masked and extent.sequences == 1:
        return 0
    rows, cols = extent.q_len // launch.block_q, extent.kv_len // launch.block_kv
    shape, largest = (extent.sequences * rows, extent.sequences * cols), extent.sequences * rows
    if isinstance(launch, ForwardLaunch | DqLaunch):
        shape, largest = (shape[0], _most_seen(extent, cols, launch.block_q, launch.block_kv)), shape[1]
    elif not isinstance(launch, FusedLaunch):
        shape = (_most_seen(extent, rows, launch.block_kv, launch.block_q), shape[1])
    return table_bytes(*shape, 1) + table_bytes(*shape, table_itemsize(largest - 1))


def _most_seen(extent: Extent, count: int, block: int, other: int) -> int:
    """A bound on the blocks of ``other`` tokens, of ``count``, that a block of the other side sees in a sequence."""
    left, right = extent.problem.bounds
    if left is None or right is None:
        return count
    return min(count, -(-(block + left + right - 1) // other) + 1)


def _operand_bytes(problem: Problem, launch: Launch) -> int:
    size = itemsize(problem)
    total = 0
    for rows, width, layout in (
        (launch.block_q, problem.head_dim, launch.q_layout),
        (launch.block_kv, problem.head_dim, launch.k_layout),
        (launch.block_kv, problem.v_head_dim, launch.v_layout),
    ):
        total += tiled_bytes(width, rows, size) if layout == SEQ_MINOR else tiled_bytes(rows, width, size)
    return total


def _mask_bytes(problem: Problem, launch: Launch) -> int:
    extent = Extent(problem=problem, block_q=launch.block_q, block_kv=launch.block_kv)
    # The stationary side's numbers fill whole lanes, the passing side's eight sublanes.
    in_lanes = tiled_bytes(launch.block_q, LANES, _FLOAT32)
    if isinstance(launch, ForwardLaunch | DqLaunch):
        of_rows, of_cols = in_lanes, tiled_bytes(SUBLANES, launch.block_kv, _FLOAT32)
    else:
        of_rows = tiled_bytes(SUBLANES, launch.block_q, _FLOAT32)
        of_cols = tiled_bytes(launch.block_kv, LANES, _FLOAT32)
    segments = of_rows + of_cols if problem.has_segments else 0
    return segments + (of_rows if extent.is_masked else 0)


def _forward_bytes(problem: Problem, launch: ForwardLaunch) -> int:
    out = tiled_bytes(launch.block_q, problem.v_head_dim, itemsize(problem))
    return out + tiled_bytes(launch.block_q, LANES, _FLOAT32)


def _gradient_bytes(problem: Problem, launch: Launch) -> int:
    size = itemsize(problem)
    dout = tiled_bytes(launch.block_q, problem.v_head_dim, size)
    rows = 2 * tiled_bytes(SUBLANES, launch.block_q, _FLOAT32)
    dq = tiled_bytes(launch.block_q, problem.head_dim, size)
    dkv = tiled_bytes(launch.block_kv, problem.head_dim, size)
    dkv += tiled_bytes(launch.block_kv, problem.v_head_dim, size)
    if isinstance(launch, DqLaunch):
        return dout + rows + dq
    return dout + rows + dkv + (dq if isinstance(launch, FusedLaunch) else 0)


def _scratch_bytes(problem: Problem, launch: Launch) -> int:
    dq = tiled_bytes(launch.block_q, problem.head_dim, _FLOAT32)
    if isinstance(launch, ForwardLaunch):
        numbers = 2 * tiled_bytes(launch.block_q, LANES, _FLOAT32)
        return numbers + tiled_bytes(launch.block_q, problem.v_head_dim, _FLOAT32)
    if isinstance(launch, DqLaunch):
        return dq
    total = tiled_bytes(launch.block_kv, problem.head_dim, _FLOAT32)
    total += tiled_bytes(launch.block_kv, problem.v_head_dim, _FLOAT32)
    return total + (dq if isinstance(launch, FusedLaunch) else 0)


def _logits_bytes(problem: Problem, launch: Launch) -> int:
    # What the compiler keeps of one step's logits, over v5e and v6e: up to 0.9 copies forward, up to 1.1 backward, and
    # nearly one more with a soft cap. Half a copy is left as a margin.
    columns = launch.block_kv_compute if isinstance(launch, ComputedLaunch) else launch.block_kv
    halves = 2 if isinstance(launch, ForwardLaunch) else 3
    halves += 2 if problem.soft_cap is not None else 0
    return halves * tiled_bytes(launch.block_q, columns, _FLOAT32) // 2


def _spilled_bytes(problem: Problem, launch: Launch) -> int:
    if isinstance(launch, ForwardLaunch):
        most = _FORWARD_SPILLS
    else:
        most = _DQ_SPILLS if isinstance(launch, DqLaunch) else _DKV_SPILLS
    columns = launch.block_kv_compute if isinstance(launch, ComputedLaunch) else launch.block_kv
    logits = most.logits + (most.capped if problem.soft_cap is not None else 0)
    copies = (
        (logits, launch.block_q, columns),
        (most.outputs, launch.block_q, problem.v_head_dim),
        (most.queries, launch.block_q, problem.head_dim),
        (most.keys, launch.block_kv, problem.head_dim),
        (most.values, launch.block_kv, problem.v_head_dim),
    )
    return int(sum(share * tiled_bytes(rows, width, _FLOAT32) for share, rows, width in copies))


def itemsize(problem: Problem) -> int:
    """Bytes of one element of the operands."""
    return 4 if problem.dtype == "float32" else 2
