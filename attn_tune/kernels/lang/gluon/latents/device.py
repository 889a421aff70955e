"""Device code of two groups of warps that attend to latents in turns.

Both own the same 64 query rows, and each half of the output's columns, since an output of 64 rows and 512 columns is
256 registers a thread of one group. A tile of keys belongs to one of them, which computes its logits and weights and
passes the weights, and the maximum of each row so far, to the other through shared memory; then each adds the product
of the weights and its half of the tile's columns, so that tiles are added in their order by both. While one group has a
softmax to compute the other multiplies; it starts with the weights of half of a tile's keys, which are passed first.
What passes is guarded by barriers: ``full`` is completed by the copies of half of a tile's columns, or by the group
that wrote; ``empty`` by the one group that multiplies these columns with weights. The softmax is that of
FlashAttention-2 (arXiv 2307.08691, algorithm 1) in base 2; FlashMLA's schedule for decoding shares columns and weights
likewise, and passes corrections back instead of keeping the order of tiles.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from dataclasses import dataclass
from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attn_tune.kernels.lang.gluon.latents import GROUPS, KEYS, PANEL, ROWS, WARPS
from attn_tune.kernels.lang.gluon.names import new_barriers, synchronize, viewed

LOG2E, LN2 = gl.constexpr(1.4426950408889634), gl.constexpr(0.6931471805599453)
_ROWS = gl.constexpr(ROWS)
_KEYS = gl.constexpr(KEYS)
_PART = gl.constexpr(KEYS // 2)
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

    def product(width: int) -> gl.NVMMADistributedLayout:
        return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, width, 16])

    out = product(half)
    weights = gl.DotOperandLayout(operand_index=0, parent=out, k_width=2)
    return Layouts(logits=product(KEYS), part=product(KEYS // 2), weights=weights, out=out)


class Buffers(NamedTuple):
    """The slots in shared memory.

    Attributes:
      q, q_rest: halves of the queries' columns ``[2, 64, half]``, and the columns behind ``[1, 64, 64]``, if any.
      k, k_rest: halves of keys' columns ``[stages * 2, 64, half]``, and those behind ``[stages, 64, 64]``, if any.
      weights: what is passed of a tile ``[stages, 64, 64]``: the bytes of ``k_rest``, read by then, if there are some.
      maxima, totals: what each group passes of each row, ``[2, 64]``.
    """

    q: gl.shared_memory_descriptor
    q_rest: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    k_rest: gl.shared_memory_descriptor
    weights: gl.shared_memory_descriptor
    maxima: gl.shared_memory_descriptor
    totals: gl.shared_memory_descriptor


class Barriers(NamedTuple):
    """Barriers of the columns of each stage, by pieces as they come and by halves as they are free, and of what passes.

    The columns behind come with the half of the group that a tile does not belong to, and are free with it.
    """

    k_full: gl.shared_memory_descriptor
    k_empty: gl.shared_memory_descriptor
    maxima_full: gl.shared_memory_descriptor
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
        gl.allocate_shared_memory(gl.float32, [_GROUPS, _ROWS], plain),
    )


@gluon.jit
def new_signals(ARRIVALS: gl.constexpr, plan: gl.constexpr):
    """Barriers of a program, of whose copies ``ARRIVALS`` are counted for each piece of a tile."""
    SLOTS: gl.constexpr = plan.stages * _GROUPS
    PIECES: gl.constexpr = SLOTS * plan.pieces
    return Barriers(
        new_barriers(PIECES, ARRIVALS),
        new_barriers(SLOTS, 1),
        new_barriers(_GROUPS, 1),
        new_barriers(_GROUPS * 2, 1),
        new_barriers(_GROUPS, 1),
    )


@gluon.jit
def stage_of(tile, plan: gl.constexpr):
    """The stage of a tile of keys, and the phase of its barriers. Without a sign these are a mask and a shift."""
    tile = tile.to(gl.uint32)
    return (tile % plan.stages).to(gl.int32) + _zero(tile), (tile // plan.stages & 1).to(gl.int32)


@gluon.jit
def _zero(tile):
    """Zero, which compilers do not know, of each tile anew.

    A group's tiles have one stage of two: compilers would keep the addresses of 80 instructions in registers.
    """
    return tile.to(gl.int32) * gl.program_id(2)


@gluon.constexpr_function
def piece_of(group, place, pieces):
    """The piece of a tile's columns that comes at a place, those of the half of its own group first."""
    return (group * pieces + place) % (2 * pieces)


@gluon.jit
def await_piece(piece, phase, barriers, plan: gl.constexpr):
    """Waits until a piece of half of a tile's columns has come."""
    mbarrier.wait(barriers.k_full.index(piece), phase)
    if plan.is_gathered:
        # What was copied by threads is read by the tensor cores.
        fence_async_shared()


@gluon.jit
def await_half(half, phase, barriers, plan: gl.constexpr):
    """Waits until half of a tile's columns have come."""
    PIECES: gl.constexpr = plan.pieces
    for i in gl.static_range(PIECES):
        await_piece(half * PIECES + i, phase, barriers, plan)


@gluon.jit
def start_logits(
    GROUP: gl.constexpr,
    FIRST: gl.constexpr,
    LAST: gl.constexpr,
    x,
    tile,
    buffers,
    barriers,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Starts the products of queries and an own tile, pieces ``FIRST`` to ``LAST`` as they come."""
    PIECES: gl.constexpr = plan.pieces
    COLUMNS: gl.constexpr = plan.half // PIECES
    Q_PIECES: gl.constexpr = _GROUPS * PIECES
    K_PIECES: gl.constexpr = plan.stages * _GROUPS * PIECES
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_KEYS, COLUMNS], buffers.k.dtype)
    q = viewed(buffers.q, [Q_PIECES, _ROWS, COLUMNS], layout)
    k = viewed(buffers.k, [K_PIECES, _KEYS, COLUMNS], layout)
    stage, phase = stage_of(tile, plan)
    zero = _zero(tile)
    for i in gl.static_range(FIRST, LAST):
        own = piece_of(GROUP, i, PIECES)
        piece = stage * _GROUPS * PIECES + own
        await_piece(piece, phase, barriers, plan)
        x = warpgroup_mma(q.index(zero + own), k.index(piece).permute((1, 0)), x, use_acc=i > 0, is_async=True)
    if plan.rest > 0 and FIRST < LAST and LAST == _GROUPS * PIECES:
        x = warpgroup_mma(buffers.q_rest.index(zero), buffers.k_rest.index(stage).permute((1, 0)), x, is_async=True)
    return x


@gluon.jit
def receive_others(
    GROUP: gl.constexpr, acc, maximum, total, tile, buffers, barriers, plan: gl.constexpr, layouts: gl.constexpr
):
    """Waits for a tile of the other group; output and denominator by the maximum behind it."""
    stage, phase = stage_of(tile, plan)
    mbarrier.wait(barriers.maxima_full.index(1 - GROUP), tile // 2 & 1)
    highest = buffers.maxima.index(1 - GROUP).load(gl.SliceLayout(1, layouts.logits))
    correction = gl.exp2(maximum - _shift(highest))
    acc = acc * gl.convert_layout(correction, gl.SliceLayout(1, layouts.out))[:, None]
    await_half(stage * 2 + GROUP, phase, barriers, plan)
    return acc, highest, total * correction


@gluon.jit
def _parts_of(weights, stage, plan: gl.constexpr):
    """The weights of the first and of the last half of a tile's keys, which are passed one after the other."""
    PARTS: gl.constexpr = plan.stages * 2
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_ROWS, _PART], weights.dtype)
    views = viewed(weights, [PARTS, _ROWS, _PART], layout)
    return views.index(stage * 2), views.index(stage * 2 + 1)


@gluon.jit
def start_others(GROUP: gl.constexpr, acc, tile, buffers, barriers, plan: gl.constexpr):
    """Starts the products of received weights, as they come, and the own half of their tile's columns."""
    stage, _ = stage_of(tile, plan)
    first, last = _parts_of(buffers.weights, stage, plan)
    k = buffers.k.index(stage * 2 + GROUP)
    mbarrier.wait(barriers.weights_full.index((1 - GROUP) * 2), tile // 2 & 1)
    acc = warpgroup_mma(first, k.slice(0, _PART), acc, is_async=True)
    mbarrier.wait(barriers.weights_full.index((1 - GROUP) * 2 + 1), tile // 2 & 1)
    return warpgroup_mma(last, k.slice(_PART, _PART), acc, is_async=True)


@gluon.jit
def end_others(GROUP: gl.constexpr, acc, tile, LATER: gl.constexpr, barriers, plan: gl.constexpr):
    """Waits for that product, behind which ``LATER`` were started, and frees the columns."""
    stage, _ = stage_of(tile, plan)
    acc = warpgroup_mma_wait(LATER, deps=[acc])
    mbarrier.arrive(barriers.k_empty.index(stage * 2 + GROUP))
    return acc


@gluon.jit
def pass_maxima(GROUP: gl.constexpr, x, maximum, SCALE: gl.constexpr, buffers, barriers, layouts: gl.constexpr):
    """The maximum behind an own tile, of logits ``x * SCALE``; passed on before weights are made."""
    # Scaled behind the maximum, and in the one instruction that subtracts it.
    highest = gl.maximum(maximum, gl.max(x, 1) * SCALE)
    buffers.maxima.index(GROUP).store(highest)
    mbarrier.arrive(barriers.maxima_full.index(GROUP))
    # Read again, so that the compiler keeps what is not urgent behind the arrival.
    return buffers.maxima.index(GROUP).load(gl.SliceLayout(1, layouts.logits))


@gluon.jit
def add_own(
    GROUP: gl.constexpr,
    PENDING: gl.constexpr,
    acc,
    x,
    maximum,
    highest,
    total,
    tile,
    SCALE: gl.constexpr,
    buffers,
    barriers,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Makes the weights of an own tile, passes them on, and adds their product with the own half of its columns.

    ``PENDING``: the products of the other group's tile before it run still; they end while the weights are made.
    """
    stage, _ = stage_of(tile, plan)
    slots = _parts_of(buffers.weights, stage, plan)
    passed = barriers.weights_full
    first, last = x.reshape([_ROWS, 2, _PART]).permute((0, 2, 1)).split()
    if PENDING:
        acc = end_others(GROUP, acc, tile - 1, 0, barriers, plan)
    shift = gl.convert_layout(_shift(highest), gl.SliceLayout(1, layouts.part))
    first, early = _pass_weights(first, shift, SCALE, slots[0], passed.index(GROUP * 2), layouts)
    # Read again, twice, so that the compiler keeps what is not urgent behind the weights before.
    shift = _shift(buffers.maxima.index(GROUP).load(gl.SliceLayout(1, layouts.part)))
    last, late = _pass_weights(last, shift, SCALE, slots[1], passed.index(GROUP * 2 + 1), layouts)
    highest = buffers.maxima.index(GROUP).load(gl.SliceLayout(1, layouts.logits))
    correction = gl.exp2(maximum - _shift(highest))
    acc = acc * gl.convert_layout(correction, gl.SliceLayout(1, layouts.out))[:, None]
    k = buffers.k.index(stage * 2 + GROUP)
    acc = warpgroup_mma(gl.convert_layout(early, layouts.weights), k.slice(0, _PART), acc, is_async=True)
    acc = warpgroup_mma(gl.convert_layout(late, layouts.weights), k.slice(_PART, _PART), acc, is_async=True)
    added = gl.sum(first, 1) + gl.sum(last, 1)
    total = total * correction + gl.convert_layout(added, gl.SliceLayout(1, layouts.logits))
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(barriers.k_empty.index(stage * 2 + GROUP))
    return acc, total


@gluon.jit
def _pass_weights(x, shift, SCALE: gl.constexpr, slot, passed, layouts: gl.constexpr):
    """The weights of half of an own tile's keys, and these rounded, which are passed on."""
    weights = gl.exp2(gl.convert_layout(x, layouts.part) * SCALE - shift[:, None])
    rounded = weights.to(slot.dtype)
    slot.store(rounded)
    fence_async_shared()
    mbarrier.arrive(passed)
    return weights, rounded


@gluon.jit
def _shift(maximum):
    """The number to subtract from logits: a row may have seen nothing yet."""
    return gl.where(maximum == float("-inf"), 0.0, maximum)


@gluon.constexpr_function
def rows_layout(width):
    """Sixteen bytes a thread, and as much of a row a warp as it can hold."""
    across = min(32, width // 8)
    return gl.BlockedLayout([1, 8], [32 // across, across], [WARPS, 1], [1, 0])


@gluon.jit
def rounded_rows(GROUP: gl.constexpr, acc, factor, buffers, plan: gl.constexpr, layouts: gl.constexpr):
    """``acc * factor`` in the queries' dtype, a warp a row: by way of half of the queries, which no group needs now."""
    values = acc * gl.convert_layout(factor, gl.SliceLayout(1, layouts.out))[:, None]
    memory = buffers.q.index(GROUP)
    memory.store(values.to(buffers.q.dtype))
    LAYOUT: gl.constexpr = rows_layout(plan.half)
    return memory.load(LAYOUT)


@gluon.jit
def sum_totals(GROUP: gl.constexpr, total, turn, buffers, barriers, layouts: gl.constexpr):
    """The denominator of the tiles of both groups."""
    buffers.totals.index(GROUP).store(total)
    synchronize()
    mbarrier.arrive(barriers.totals_full.index(GROUP))
    mbarrier.wait(barriers.totals_full.index(1 - GROUP), turn & 1)
    return total + buffers.totals.index(1 - GROUP).load(gl.SliceLayout(1, layouts.logits))
