"""Shared memory and registers that one block of a Mosaic GPU kernel takes of a Hopper multiprocessor."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, Multiple
from attn_tune.schema.device import Device

HOPPER = 90
WARPGROUP_ROWS = 64
# Warpgroups of a forward that compute; a third one loads.
FORWARD_GROUPS = 2
BLOCKS = (64, 128, 192, 256)
# Bytes of shared memory one block can opt in to on sm_90 (CUDA C++ programming guide).
_HOPPER_SHARED_BYTES = 232_448
# Each array in shared memory starts at a multiple of this.
_ALIGNMENT = 1024
_BARRIER_BYTES = 8
# A warpgroup's threads, and the float32 accumulators a thread may hold: there are 255 registers, and a few more are
# spilled once at a loop's edge.
_WARPGROUP, _MOST_ACCUMULATORS = 128, 288


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch(Knobs):
    """One launch: a warpgroup's tile is ``block_q`` rows by ``block_kv`` keys."""

    block_q: Annotated[int, Multiple(WARPGROUP_ROWS, tried=BLOCKS, doc="query rows of a warpgroup's tile")]
    block_kv: Annotated[int, Multiple(WARPGROUP_ROWS, tried=BLOCKS, doc="keys of a warpgroup's tile")]


def shared_bytes(arrays: Iterable[int], barriers: int, reserved: int = 0) -> int:
    """Shared memory of a block: its arrays' sizes, its barriers, and what is ``reserved`` for reductions."""
    total = sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in arrays)
    return total + _BARRIER_BYTES * barriers + reserved


def shared_reason(device: Device, needed: int) -> str | None:
    """The reason that ``needed`` bytes of shared memory do not fit, or None."""
    limit = device.shared_bytes or _HOPPER_SHARED_BYTES
    if needed > limit:
        return f"its tiles need {needed} bytes of shared memory; {device.family} has {limit}"
    return None


def is_light(elements: int) -> bool:
    """Whether a warpgroup can hold so many float32 accumulators without spilling them at every step."""
    return elements // _WARPGROUP <= _MOST_ACCUMULATORS
