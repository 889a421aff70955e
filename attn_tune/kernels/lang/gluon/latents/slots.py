"""Slots of shared memory, barriers and layouts of two groups of warps that attend to latents in turns (``device``)."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from dataclasses import dataclass
from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attn_tune.kernels.lang.gluon.device import product_layout
from attn_tune.kernels.lang.gluon.latents import GROUPS, KEYS, PANEL, ROWS, WARPS
from attn_tune.kernels.lang.gluon.names import new_barriers

_ROWS = gl.constexpr(ROWS)
_KEYS = gl.constexpr(KEYS)
_GROUPS = gl.constexpr(GROUPS)
_PANEL = gl.constexpr(PANEL)


@dataclass(frozen=True)
class Layouts:
    """The layouts of tiles in registers: logits, those of half the keys, weights as an operand, and half the output."""

    logits: Any
    part: Any
    weights: Any
    out: Any


def layouts_of(half: int) -> Layouts:
    """The layouts of a group whose half of the output has ``half`` columns."""

    out = product_layout(half)
    weights = gl.DotOperandLayout(operand_index=0, parent=out, k_width=2)
    return Layouts(logits=product_layout(KEYS), part=product_layout(KEYS // 2), weights=weights, out=out)


class Buffers(NamedTuple):
    """The slots in shared memory.

    Attributes:
      q, q_rest: halves of the queries' columns ``[2, 64, half]``, and the columns behind ``[1, 64, 64]``, if any.
      k, k_rest: halves of keys' columns ``[stages * 2, 64, half]``, and those behind ``[stages, 64, 64]``, if any.
      weights: what is passed of a tile ``[stages, 64, 64]``: the bytes of ``k_rest``, read by then, if there are some.
      shifts, grown, totals: what each group passes of each row, ``[2, 64]``: whether the shift has grown is 0 or 1.
    """

    q: gl.shared_memory_descriptor
    q_rest: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    k_rest: gl.shared_memory_descriptor
    weights: gl.shared_memory_descriptor
    shifts: gl.shared_memory_descriptor
    grown: gl.shared_memory_descriptor
    totals: gl.shared_memory_descriptor


class Barriers(NamedTuple):
    """Barriers of the columns of each stage, by pieces as they come and by halves as they are free, and of what passes.

    The columns behind come with the half of the group that a tile does not belong to, and are free with it.
    """

    k_full: tuple[gl.shared_memory_descriptor, ...]
    k_empty: gl.shared_memory_descriptor
    shifts_full: gl.shared_memory_descriptor
    weights_full: gl.shared_memory_descriptor
    totals_full: gl.shared_memory_descriptor


@gluon.jit
def new_buffers(dtype: gl.constexpr, plan: gl.constexpr):
    """Shared memory of a program."""
    STAGES: gl.constexpr = plan.stages
    HALF: gl.constexpr = plan.half
    SLOTS: gl.constexpr = STAGES * _GROUPS
    q_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_ROWS, HALF], dtype)
    k_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_KEYS, HALF], dtype)
    panel: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_KEYS, _PANEL], dtype)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    behind = gl.allocate_shared_memory(dtype, [STAGES, _KEYS, _PANEL], panel)
    # Triton 3.6 returns no None; without columns behind nothing reads these.
    q_rest = behind
    if plan.rest > 0:
        q_rest = gl.allocate_shared_memory(dtype, [1, _ROWS, _PANEL], panel)
    return Buffers(
        gl.allocate_shared_memory(dtype, [_GROUPS, _ROWS, HALF], q_layout),
        q_rest,
        gl.allocate_shared_memory(dtype, [SLOTS, _KEYS, HALF], k_layout),
        behind,
        behind,
        gl.allocate_shared_memory(gl.float32, [_GROUPS, _ROWS], plain),
        gl.allocate_shared_memory(gl.int32, [_GROUPS, _ROWS], plain),
        gl.allocate_shared_memory(gl.float32, [_GROUPS, _ROWS], plain),
    )


@gluon.jit
def new_signals(ARRIVALS: gl.constexpr, plan: gl.constexpr):
    """Barriers of a program, of whose copies ``ARRIVALS`` are counted for each piece of a tile."""
    SLOTS: gl.constexpr = plan.stages * _GROUPS
    PIECES: gl.constexpr = _GROUPS * plan.pieces
    STAGES: gl.constexpr = plan.stages
    full = ()
    for _ in gl.static_range(PIECES):
        full += (new_barriers(STAGES, ARRIVALS),)
    return Barriers(
        full,
        new_barriers(SLOTS, 1),
        new_barriers(_GROUPS, 1),
        new_barriers(_GROUPS * 2, 1),
        new_barriers(_GROUPS, 1),
    )


@gluon.jit
def stage_of(tile, plan: gl.constexpr):
    """The stage of a tile of keys, and the phase of its barriers. Without a sign these are a mask and a shift."""
    tile = tile.to(gl.uint32)
    return (tile % plan.stages).to(gl.int32) + unknown_zero(tile), (tile // plan.stages & 1).to(gl.int32)


@gluon.jit
def unknown_zero(tile):
    """A zero of int32 that is computed of each tile, and not known when the kernel is compiled.

    A group's tiles have one stage of two: compilers would keep the addresses of 80 instructions in registers.
    """
    return tile.to(gl.int32) * gl.program_id(2)


@gluon.constexpr_function
def piece_of(group, place, pieces):
    """The piece of a tile's columns that comes at a place, those of the half of its own group first."""
    return (group * pieces + place) % (2 * pieces)


@gluon.constexpr_function
def rows_layout(width):
    """Sixteen bytes a thread, and as much of a row a warp as it can hold."""
    across = min(32, width // 8)
    return gl.BlockedLayout([1, 8], [32 // across, across], [WARPS, 1], [1, 0])
