"""Estimates of the VMEM of a launch."""

from attn_tune.kernels.flash_attention.pallas_tpu_flash.config import (
    DkvConfig,
    ForwardConfig,
    Launch,
    rows_of,
)
from attn_tune.kernels.flash_attention.pallas_tpu_flash.frame import Frame
from attn_tune.kernels.lang.pallas_tpu.memory import LANES, SUBLANES, tiled_bytes
from attn_tune.ops.flash_attention.problem import Problem

_FLOAT32 = 4


def frame_of(problem: Problem, launch: Launch) -> Frame:
    """The padded problem that a launch sees."""
    return Frame(problem=problem, block_q=rows_of(launch), block_k=launch.block_k_major)


def vmem_bytes(problem: Problem, launch: Launch) -> int:
    """A low estimate of the VMEM, above which a launch is refused."""
    return _block_bytes(problem, launch) + 2 * tiled_bytes(launch.block_q, launch.block_k, _FLOAT32)


def expected_bytes(problem: Problem, launch: Launch) -> int:
    """A high estimate of the VMEM, which untuned launches and limits are chosen by: they are not compiled first.

    A little above what libtpu 0.0.52 took of 24 launches on v4, v5e, v5p, v6e and v7x, their operands in HBM. A loop
    over the keys in VMEM is unrolled, so that a forward spills logits of all of them.
    """
    rows = tiled_bytes(rows_of(launch), frame_of(problem, launch).head_dim, _FLOAT32)
    product = tiled_bytes(launch.block_q, launch.block_k, _FLOAT32)
    block = tiled_bytes(rows_of(launch), launch.block_k_major, _FLOAT32)
    if isinstance(launch, ForwardConfig):
        spilled = 1.125 * block + 0.75 * rows
    elif isinstance(launch, DkvConfig):
        spilled = 1.75 * product + 0.5 * block
    else:
        spilled = 1.5 * product + 1.5 * rows
    return _block_bytes(problem, launch) + max(int(spilled), 2 * product)


def _block_bytes(problem: Problem, launch: Launch) -> int:
    """Two copies of each block that passes, and the accumulators."""
    frame = frame_of(problem, launch)
    size = _FLOAT32 if problem.dtype == "float32" else 2
    rows = tiled_bytes(rows_of(launch), frame.head_dim, size)
    keys = tiled_bytes(launch.block_k_major, frame.head_dim, size)
    numbers = tiled_bytes(rows_of(launch), LANES, _FLOAT32)
    accumulator = tiled_bytes(rows_of(launch), frame.head_dim, _FLOAT32)
    mask = _mask_bytes(frame, launch, numbers)
    if isinstance(launch, ForwardConfig):
        # Queries, output, keys, values; denominator and largest logit go out, and are accumulated.
        passing = 2 * rows + 2 * keys + 2 * numbers + mask
        scratch = 2 * numbers + accumulator
        if launch.block_k == frame.kv_len:
            scratch = 0
        return launch.block_b * (2 * passing + scratch)
    if isinstance(launch, DkvConfig):
        passing = 2 * rows + 4 * keys + 3 * numbers + mask
        scratch = 2 * tiled_bytes(launch.block_k_major, frame.head_dim, _FLOAT32)
        return 2 * passing + scratch
    dbias = tiled_bytes(launch.block_q, launch.block_k_major, _FLOAT32) if frame.needs_bias else 0
    return 2 * (3 * rows + 2 * keys + 3 * numbers + mask + dbias) + accumulator


def _mask_bytes(frame: Frame, launch: Launch, numbers: int) -> int:
    total = 0
    if frame.needs_bias:
        total += tiled_bytes(rows_of(launch), launch.block_k_major, _FLOAT32)
    if frame.needs_ids:
        total += numbers + tiled_bytes(SUBLANES, launch.block_k_major, _FLOAT32)
    return total
