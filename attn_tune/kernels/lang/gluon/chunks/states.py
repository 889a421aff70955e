"""Device code of states that groups of warps hold turned, columns by rows, and of the outputs that they make.

Of a product on a Hopper tensor core the first operand may lie in registers, and the second is read from shared memory.
Turned, a state and what has the shape of values are first operands, which pass from product to product in registers;
queries, keys and the squares of a chunk are second ones.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from dataclasses import dataclass
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from attn_tune.kernels.lang.gluon.chunks import CHUNK, COLUMNS, WARPS
from attn_tune.kernels.lang.gluon.device import product_layout
from attn_tune.kernels.lang.gluon.names import start_store, synchronize

_CHUNK = gl.constexpr(CHUNK)
_COLUMNS = gl.constexpr(COLUMNS)
# Sixteen bytes of a row a thread.
BY_ROWS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0]))


@dataclass(frozen=True)
class Layouts:
    """The layouts of a group's tiles in registers.

    Attributes:
      tokens, state: columns of the state by the tokens of a chunk, and by the state's rows.
      operand: a first operand of products that have a column a token.
      update: a first operand of products that have a column a row of the state.
    """

    tokens: Any
    state: Any
    operand: Any
    update: Any


def layouts_of(width: int) -> Layouts:
    """The layouts of states of ``width`` rows."""

    tokens, state = product_layout(CHUNK), product_layout(width)
    operand, update = (gl.DotOperandLayout(operand_index=0, parent=one, k_width=2) for one in (tokens, state))
    return Layouts(tokens=tokens, state=state, operand=operand, update=update)


@gluon.jit
def offsets_of(
    GROUP: gl.constexpr, walk, WIDTH: gl.constexpr, static: gl.constexpr, plan: gl.constexpr, layouts: gl.constexpr
):
    """The offsets of a group's columns of a state, whose rows have ``WIDTH`` columns."""
    H: gl.constexpr = static.width
    column = (walk.tile * plan.groups + GROUP) * _COLUMNS + gl.arange(0, _COLUMNS, gl.SliceLayout(1, layouts.state))
    row = gl.arange(0, H, gl.SliceLayout(0, layouts.state))
    return row[None, :] * WIDTH + column[:, None]


@gluon.jit
def load_start(
    GROUP: gl.constexpr, walk, starts, static: gl.constexpr, plan: gl.constexpr, layouts: gl.constexpr, index
):
    """A group's columns of the state of number ``index``; zeros where there are no states."""
    held = gl.full([_COLUMNS, static.width], 0.0, gl.float32, layouts.state)
    if starts is not None:
        base = starts + index.to(gl.int64) * (static.width * static.v_width)
        held = gl.load(base + offsets_of(GROUP, walk, static.v_width, static, plan, layouts)).to(gl.float32)
    return held


@gluon.jit
def store_end(GROUP: gl.constexpr, walk, held, state, static: gl.constexpr, plan: gl.constexpr, layouts: gl.constexpr):
    """Stores a group's columns of the final state, from the segment of the last chunk."""
    is_last = walk.last * _CHUNK >= walk.end - walk.begin
    # The first segment of an empty sequence.
    if is_last & ((walk.first < walk.last) | (walk.segment == 0)):
        index = walk.sequence * static.heads + walk.head
        base = state + index.to(gl.int64) * (static.width * static.v_width)
        gl.store(base + offsets_of(GROUP, walk, static.v_width, static, plan, layouts), held)


@gluon.jit
def await_chunk(GROUP: gl.constexpr, start, stage, phase, walk, buffers, plan: gl.constexpr):
    """Waits until the chunk from token ``start`` on has come: its keys, and a group's columns of its values.

    Rows behind the sequence are zeros: what lies there may be infinite.
    """
    mbarrier.wait(buffers.full.index(stage), phase)
    k = buffers.k.index(stage)
    v = buffers.v.index(stage * plan.groups + GROUP)
    if start + _CHUNK > walk.end:
        clear_from(walk.end - start, k)
        clear_from(walk.end - start, v)
        fence_async_shared()
        synchronize()
    return k, v


@gluon.jit
def clear_from(count, tile):
    """Sets the rows of a tile from ``count`` on to zero."""
    row = gl.arange(0, _CHUNK, gl.SliceLayout(1, BY_ROWS))
    tile.store(gl.where((row < count)[:, None], tile.load(BY_ROWS), 0.0))


@gluon.jit
def store_outputs(
    GROUP: gl.constexpr, found, chunk, walk, out, out_desc, slots, static: gl.constexpr, plan: gl.constexpr
):
    """Stores the outputs of a chunk, turned back on their way through the two slots of a group."""
    slot = slots.index(2 * GROUP + (chunk & 1))
    start = walk.begin + chunk * _CHUNK
    # The outputs of the chunk before the last one have left.
    tma.store_wait(1)
    synchronize()
    slot.permute((1, 0)).store(found)
    fence_async_shared()
    synchronize()
    if start + _CHUNK <= walk.end:
        start_store(out_desc, [start, first_column(GROUP, walk, static, plan)], slot)
    else:
        store_some(GROUP, slot.load(BY_ROWS), start, walk, out, static, plan)


@gluon.jit
def store_nothing(GROUP: gl.constexpr, walk, out, static: gl.constexpr, plan: gl.constexpr):
    """Stores zeros as the outputs of tokens that no sequence has."""
    zeros = gl.full([_CHUNK, _COLUMNS], 0.0, out.dtype.element_ty, BY_ROWS)
    for chunk in range(walk.first, walk.last):
        store_some(GROUP, zeros, walk.begin + chunk * _CHUNK, walk, out, static, plan)


@gluon.jit
def store_some(GROUP: gl.constexpr, values, start, walk, out, static: gl.constexpr, plan: gl.constexpr):
    """Stores those rows that are tokens of a walk."""
    row = start + gl.arange(0, _CHUNK, gl.SliceLayout(1, BY_ROWS))
    column = first_column(GROUP, walk, static, plan) + gl.arange(0, _COLUMNS, gl.SliceLayout(0, BY_ROWS))
    offsets = row.to(gl.int64)[:, None] * (static.heads * static.v_width) + column[None, :]
    gl.store(out + offsets, values, mask=(row < walk.end)[:, None])


@gluon.jit
def first_column(GROUP: gl.constexpr, walk, static: gl.constexpr, plan: gl.constexpr):
    """The first column of a group in arrays that have all heads in a row."""
    return walk.head * static.v_width + (walk.tile * plan.groups + GROUP) * _COLUMNS
