"""Device code of the parts in which chunks are differentiated on Hopper, and of the warp that copies them.

A part is 32 columns of the values of a chunk and value head, and of the states around it; its copies are waited for one
part at a time.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from dataclasses import dataclass
from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from attn_tune.kernels.lang.gluon.chunks import CHUNK, PART
from attn_tune.kernels.lang.gluon.device import product_layout
from attn_tune.kernels.lang.gluon.names import new_barriers, start_copy, viewed_as

_CHUNK = gl.constexpr(CHUNK)
# Groups of warps: two with one half of the channels each, and that of pairs of tokens.
_GROUPS = gl.constexpr(3)
_PART = gl.constexpr(PART)
_PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, order=[0]))
# Sixteen bytes of a row lie together, in another place of the next row.
_SUMS = gl.constexpr(gl.SwizzledSharedLayout(4, 1, 8, order=[1, 0]))


class Buffers(NamedTuple):
    """Slots in shared memory, and their barriers.

    Attributes:
      q, k: halves of the channels of queries and keys ``[2, chunk, H / 2]``.
      states, later: halves of states turned, before the chunk, and of their gradients after it
        ``[stages * 2, columns, H / 2]``.
      v, dout, updates, rests, y: what has the shape of values ``[stages, chunk, columns]``.
      squares: ``w`` and ``beta z`` of a head ``[2, chunk, chunk]``.
      sums: float32 ``[4, chunk, H / 2]``: of each group the gradients of queries and keys, as the heads add to them.
      out: the same memory, in halves of which these leave ``[8, chunk, H / 2]``.
      shares: float32 ``[8, chunk]``: of each group of channels what it adds to the gradients of logarithms of decays,
        and to those of strengths; then products of values with their gradients, half of the tokens by each. Three more
        are not used.
      full, empty: barriers of each stage: all has come, and every group has read it.
      keys_full, keys_empty: those of ``q`` and ``k``.
      squares_full, squares_empty: both are written, and the groups of channels have read them.
      shares_full: these are written.
    """

    q: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    states: gl.shared_memory_descriptor
    later: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    dout: gl.shared_memory_descriptor
    updates: gl.shared_memory_descriptor
    rests: gl.shared_memory_descriptor
    y: gl.shared_memory_descriptor
    squares: gl.shared_memory_descriptor
    sums: gl.shared_memory_descriptor
    out: gl.shared_memory_descriptor
    shares: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    keys_full: gl.shared_memory_descriptor
    keys_empty: gl.shared_memory_descriptor
    squares_full: gl.shared_memory_descriptor
    squares_empty: gl.shared_memory_descriptor
    shares_full: gl.shared_memory_descriptor


@dataclass(frozen=True)
class GradientLayouts:
    """The layouts of a group's tiles in registers.

    Attributes:
      half: tokens, or columns of a state, by half of the channels.
      pairs: tokens by tokens.
    """

    half: Any
    pairs: Any


def layouts_of(width: int) -> GradientLayouts:
    """The layouts for keys of ``width`` channels."""

    return GradientLayouts(half=product_layout(width // 2), pairs=product_layout(CHUNK))


@gluon.jit
def new_buffers(dtype: gl.constexpr, static: gl.constexpr, plan: gl.constexpr):
    """Shared memory of a program."""
    HALF: gl.constexpr = static.width // 2
    STAGES: gl.constexpr = plan.stages
    half: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_CHUNK, HALF], dtype)
    tile: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_CHUNK, _PART], dtype)
    part: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_PART, HALF], dtype)
    square: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_CHUNK, _CHUNK], dtype)
    out = gl.allocate_shared_memory(dtype, [8, _CHUNK, HALF], half)
    return Buffers(
        gl.allocate_shared_memory(dtype, [2, _CHUNK, HALF], half),
        gl.allocate_shared_memory(dtype, [2, _CHUNK, HALF], half),
        gl.allocate_shared_memory(dtype, [STAGES * 2, _PART, HALF], part),
        gl.allocate_shared_memory(dtype, [STAGES * 2, _PART, HALF], part),
        gl.allocate_shared_memory(dtype, [STAGES, _CHUNK, _PART], tile),
        gl.allocate_shared_memory(dtype, [STAGES, _CHUNK, _PART], tile),
        gl.allocate_shared_memory(dtype, [STAGES, _CHUNK, _PART], tile),
        gl.allocate_shared_memory(dtype, [STAGES, _CHUNK, _PART], tile),
        gl.allocate_shared_memory(dtype, [STAGES, _CHUNK, _PART], tile),
        gl.allocate_shared_memory(dtype, [2, _CHUNK, _CHUNK], square),
        viewed_as(out, gl.float32, [4, _CHUNK, HALF], _SUMS),
        out,
        gl.allocate_shared_memory(gl.float32, [8, _CHUNK], _PLAIN),
        new_barriers(STAGES, 1),
        new_barriers(STAGES, _GROUPS),
        new_barriers(1, 1),
        new_barriers(1, _GROUPS),
        new_barriers(1, 1),
        new_barriers(1, 2),
        new_barriers(1, 2),
    )


@gluon.jit
def copy_parts(places, copied, buffers, static: gl.constexpr, plan: gl.constexpr):
    """Copies what each chunk needs as far ahead as slots are free."""
    q_desc, k_desc, v_desc, dout_desc, u_desc, rest_desc, y_desc, state_desc, later_desc = copied
    HALF: gl.constexpr = static.width // 2
    TILES: gl.constexpr = static.v_width // _PART
    PARTS: gl.constexpr = static.group * TILES
    STAGES: gl.constexpr = plan.stages
    ITEMS: gl.constexpr = static.slots * static.key_heads
    BYTES: gl.constexpr = 2 * (4 * _PART * HALF + 5 * _CHUNK * _PART)
    step = gl.program_id(0) * 0
    turn = gl.program_id(0) * 0
    for item in range(gl.program_id(0), ITEMS, plan.programs):
        key_head = item % static.key_heads
        slot = item // static.key_heads
        sequence, start, end, _ = place_at(places, slot)
        if (sequence >= 0) & (start < end):
            for part in range(PARTS):
                stage = step % STAGES
                full = buffers.full.index(stage)
                head = key_head * static.group + part // TILES
                column = part % TILES * _PART
                row = (slot * static.heads + head) * static.v_width + column
                column += head * static.v_width
                mbarrier.wait(buffers.empty.index(stage), (step // STAGES & 1) ^ 1)
                mbarrier.expect(full, BYTES)
                start_copy(dout_desc, [start, column], full, buffers.dout.index(stage))
                start_copy(u_desc, [start, column], full, buffers.updates.index(stage))
                start_copy(rest_desc, [start, column], full, buffers.rests.index(stage))
                start_copy(y_desc, [start, column], full, buffers.y.index(stage))
                start_copy(v_desc, [start, column], full, buffers.v.index(stage))
                for half in gl.static_range(2):
                    start_copy(state_desc, [row, half * HALF], full, buffers.states.index(stage * 2 + half))
                    start_copy(later_desc, [row, half * HALF], full, buffers.later.index(stage * 2 + half))
                if part == 0:
                    keys_full = buffers.keys_full.index(0)
                    mbarrier.wait(buffers.keys_empty.index(0), (turn & 1) ^ 1)
                    mbarrier.expect(keys_full, 2 * 4 * _CHUNK * HALF)
                    for half in gl.static_range(2):
                        channel = key_head * static.width + half * HALF
                        start_copy(q_desc, [start, channel], keys_full, buffers.q.index(half))
                        start_copy(k_desc, [start, channel], keys_full, buffers.k.index(half))
                step += 1
            turn += 1


@gluon.jit
def place_at(places, slot):
    """The sequence of a place, its first token, the end of the sequence, and the beginning."""
    own = places + slot * 4
    return gl.load(own), gl.load(own + 1), gl.load(own + 2), gl.load(own + 3)


@gluon.jit
def is_given_at(place, HAS_FIRST: gl.constexpr, HAS_LAST: gl.constexpr):
    """Whether a state around a chunk is one that was given, before its sequence or, as a gradient, behind it."""
    _, start, end, begin, _ = place
    return (HAS_FIRST & (start == begin)) | (HAS_LAST & (start + _CHUNK >= end))
