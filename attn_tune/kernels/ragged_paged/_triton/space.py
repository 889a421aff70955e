"""The launch that decodes: its untuned programs, others worth trying, and tiles of it that cannot fit."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from attn_tune.kernels.lang.triton.cache_limits import streamed_bytes
from attn_tune.kernels.lang.triton.limits import shared_limit
from attn_tune.kernels.ragged_paged._triton.config import DECODE_BLOCK_K, MOST_PROGRAMS, Decoding
from attn_tune.ops.ragged_paged.problem import Problem
from attn_tune.schema.device import Device

# Multiprocessors of a device that does not say, and programs of each that decode.
_UNITS, _DECODING = 132, 2


def refuses_decoding(problem: Problem, device: Device, config: Decoding) -> str | None:
    """The reason that the launch that decodes cannot run on the device, or None; None where there is no such launch."""
    if config.decode_programs is None:
        return None
    needed, limit = 2 * streamed_bytes(problem, config.decode_block_k), shared_limit(device)
    if needed > limit:
        return f"its tiles of decoding need at least {needed} bytes of shared memory; {device.family} has {limit}"
    return None


def with_decoding[C: Any](problem: Problem, device: Device, config: C) -> C:
    """``config`` with the untuned launch that decodes, where it can run and some sequence has one new token."""
    if not any(new == 1 for new, _ in problem.sequences):
        return config
    wide = max(problem.head_dim, problem.v_head_dim) > 128 or problem.dtype == "float32"
    programs = _programs(problem, device, _DECODING)
    decoding = dataclasses.replace(config, decode_programs=programs, decode_block_k=32 if wide else 64)
    return config if refuses_decoding(problem, device, decoding) else decoding


def other_decoding[C: Any](problem: Problem, device: Device, start: C) -> Iterator[C]:
    """``start`` without a launch that decodes and with other ones, if it has one."""
    if start.decode_programs is not None:
        yield dataclasses.replace(start, decode_programs=None, decode_block_k=DECODE_BLOCK_K)
        for each, block in itertools.product((1, 2, 4, 8), (32, 64, 128)):
            programs = _programs(problem, device, each)
            yield dataclasses.replace(start, decode_programs=programs, decode_block_k=block)


def adapted_programs(tuned: Problem, problem: Problem, config: Decoding) -> int | None:
    """The ``decode_programs`` of ``tuned`` for ``problem``: as many programs a multiprocessor as there."""
    if config.decode_programs is None:
        return None
    programs = round(config.decode_programs * tuned.num_kv_heads / problem.num_kv_heads)
    return min(MOST_PROGRAMS, max(1, programs))


def _programs(problem: Problem, device: Device, each: int) -> int:
    """The programs of a key head that give each multiprocessor ``each``."""
    return max(1, min(each * (device.units or _UNITS) // problem.num_kv_heads, MOST_PROGRAMS))
