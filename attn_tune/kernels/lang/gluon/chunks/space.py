"""The part of untuned choices that walks on Hopper share: their place, and the groups of warps of a program."""

import dataclasses
from typing import Any

from attn_tune.kernels.lang.gluon.chunks import CHUNK, COLUMNS
from attn_tune.kernels.lang.recurrent import Recurrent
from attn_tune.schema.device import Device

# Places in the untuned order: before ``triton``, and behind it where sequences have so few tokens on average that a
# program's descriptors may take longer than its walk. Such were not timed.
_FIRST, _LAST, _FEW = 15, 5, 256
# Multiprocessors of a device that does not say. A program's slots fill the shared memory of one.
_UNITS = 132
# A walk of two groups takes so many times that of one.
_TWO_GROUPS = 1.5


def place(problem: Recurrent, direction: str, device: Device) -> int:
    """The place in the untuned order: first but for short sequences, and for packed ones that want segments.

    Of those ``triton`` has segments that were proven on GPUs; here sweeps prove them. A backward has none.
    """
    wants_segments = direction == "fwd" and problem.ragged and 2 * programs(problem, 1) <= units_of(device)
    is_short = sum(problem.lengths) <= _FEW * len(problem.lengths)
    return _LAST if is_short or wants_segments else _FIRST


def programs(problem: Recurrent, groups: int) -> int:
    """The programs of a launch without segments."""
    return problem.batch * problem.num_value_heads * -(-problem.v_head_dim // (groups * COLUMNS))


def groups_of(problem: Recurrent, device: Device) -> int:
    """The groups of warps with which the programs take the fewest turns of the multiprocessors."""
    units = units_of(device)
    return min((1, 2), key=lambda groups: _TWO_GROUPS ** (groups - 1) * -(-programs(problem, groups) // units))


def units_of(device: Device) -> int:
    """The multiprocessors of a device."""
    return device.units or _UNITS


def most_segments(problem: Recurrent) -> int:
    """As many segments as the longest sequence has whole chunks, and one at least."""
    return max(1, max(problem.lengths) // CHUNK)


def adapt[C: Any](tuned: Recurrent, problem: Recurrent, device: Device, config: C) -> C:
    """The config of another number of tokens, sequences or heads, with no segment without a chunk."""
    del tuned, device
    return dataclasses.replace(config, segments=min(config.segments, most_segments(problem)))
