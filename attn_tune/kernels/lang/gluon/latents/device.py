"""Device code of two groups of warps that attend to latents in turns.

Both own the same 64 query rows, and each half of the output's columns, since an output of 64 rows and 512 columns is
256 registers a thread of one group. A tile of keys belongs to one of them, which computes its logits and weights and
passes the weights to the other through shared memory, and before them the shift of each row, which was subtracted from
its logits; then each adds the product of the weights and its half of the tile's columns, so that tiles are added in
their order by both. While one group has a softmax to compute the other multiplies; it starts with the weights of half
of a tile's keys, which are passed first. A shift is the highest logit of a row so far only when one was higher than it
by a margin: mostly no output has to be multiplied then, as in FlashAttention-4.
What passes is guarded by barriers: ``full`` is completed by the copies of half of a tile's columns, or by the group
that wrote; ``empty`` by the one group that multiplies these columns with weights. The softmax is that of
FlashAttention-2 (arXiv 2307.08691, algorithm 1) in base 2; FlashMLA's schedule for decoding shares columns and weights
likewise, and passes corrections back instead of keeping the order of tiles.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attn_tune.kernels.lang.gluon.latents import GROUPS, KEYS, PANEL, ROWS, WARPS
from attn_tune.kernels.lang.gluon.latents.slots import piece_of, rows_layout, stage_of, unknown_zero
from attn_tune.kernels.lang.gluon.names import synchronize, viewed

LOG2E, LN2 = gl.constexpr(1.4426950408889634), gl.constexpr(0.6931471805599453)
_ROWS = gl.constexpr(ROWS)
_KEYS = gl.constexpr(KEYS)
_PART = gl.constexpr(KEYS // 2)
_GROUPS = gl.constexpr(GROUPS)
_PANEL = gl.constexpr(PANEL)
# Powers of two by which a logit must exceed the shift of its row to change it: float16 holds weights of up to 2**15.
_GROWTH = gl.constexpr(8.0)
# Every warp holds all rows: their maximum needs no barrier.
_EVERY_WARP = gl.constexpr(gl.BlockedLayout([ROWS // 32], [32], [WARPS], [0]))


@gluon.jit
def _await_piece(PIECE: gl.constexpr, stage, phase, barriers, plan: gl.constexpr):
    """Waits until a piece of half of a tile's columns has come."""
    mbarrier.wait(barriers.k_full[PIECE].index(stage), phase)
    if plan.is_gathered:
        # What was copied by threads is read by the tensor cores.
        fence_async_shared()


@gluon.jit
def start_tiles(
    GROUP: gl.constexpr,
    IS_FIRST: gl.constexpr,
    HIDE: gl.constexpr,
    walked,
    acc,
    shift,
    total,
    tile,
    buffers,
    barriers,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Adds the tile of the other group before an own one, and starts the logits of that: both, with what has changed.

    ``HIDE``, if not None, is called with ``walked`` before values of a tile are read; ``IS_FIRST``: there is none
    before it. The columns of the other tile are freed while logits are made, or, where they all start at once, later.
    """
    UNITS: gl.constexpr = 2 * _units_of(plan)
    AT_ONCE: gl.constexpr = UNITS if plan.halves_ahead == 2 else 0
    AHEAD: gl.constexpr = plan.halves_ahead * UNITS // 2
    MIDDLE: gl.constexpr = (AHEAD + UNITS) // 2
    LAST: gl.constexpr = UNITS - 1 if AHEAD < UNITS else UNITS
    x = gl.full([_ROWS, _KEYS], 0.0, gl.float32, layouts.logits)
    x = _start_logits(GROUP, 0, AT_ONCE, x, tile, buffers, barriers, plan)
    if not IS_FIRST:
        acc, shift, total = _receive_others(
            GROUP, HIDE, walked, 1, acc, shift, total, tile - 1, buffers, barriers, plan, layouts
        )
    x = _start_logits(GROUP, AT_ONCE, AHEAD, x, tile, buffers, barriers, plan)
    # Products of keys lie between those of the first weights and those of the last, which take as long to come.
    if not IS_FIRST:
        acc = _start_others(GROUP, 0, acc, tile - 1, buffers, barriers, plan)
    x = _start_logits(GROUP, AHEAD, MIDDLE, x, tile, buffers, barriers, plan)
    if not IS_FIRST:
        acc = _start_others(GROUP, 1, acc, tile - 1, buffers, barriers, plan)
    x = _start_logits(GROUP, MIDDLE, LAST, x, tile, buffers, barriers, plan)
    if AT_ONCE == 0:
        if not IS_FIRST:
            # Before the last products, so that the next keys come sooner.
            acc = _end_others(GROUP, acc, tile - 1, LAST - MIDDLE, barriers, plan)
        x = _start_logits(GROUP, LAST, UNITS, x, tile, buffers, barriers, plan)
    return acc, shift, total, x


@gluon.jit
def await_logits(IS_FIRST: gl.constexpr, x, plan: gl.constexpr):
    """The logits that ``start_tiles`` began, not scaled yet."""
    return warpgroup_mma_wait(2 if _is_pending(IS_FIRST, plan) else 0, deps=[x])


@gluon.constexpr_function
def _is_pending(is_first, plan):
    """Products of the other group's tile run still when logits have come: they were started behind these."""
    return plan.halves_ahead == 2 and not is_first


@gluon.jit
def end_tiles(
    GROUP: gl.constexpr,
    IS_FIRST: gl.constexpr,
    HIDE: gl.constexpr,
    walked,
    acc,
    x,
    shift,
    total,
    tile,
    SCALE: gl.constexpr,
    buffers,
    barriers,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Adds an own tile of logits ``x * SCALE``: accumulator, shift, own denominator."""
    before = shift
    shift = _pass_shift(GROUP, x, before, SCALE, buffers, barriers, layouts)
    if HIDE is not None:
        HIDE(GROUP, 0, walked, tile, buffers, plan)
    stage, _ = stage_of(tile, plan)
    slots = _parts_of(buffers.weights, stage, plan)
    passed = barriers.weights_full
    k = buffers.k.index(stage * 2 + GROUP)
    first, last = x.reshape([_ROWS, 2, _PART]).permute((0, 2, 1)).split()
    if _is_pending(IS_FIRST, plan):
        acc = _end_others(GROUP, acc, tile - 1, 0, barriers, plan)
    finite = gl.convert_layout(_finite(shift), gl.SliceLayout(1, layouts.part))
    first, early = _pass_weights(first, finite, SCALE, slots[0], passed.index(GROUP * 2), layouts)
    acc, total = _shifted(acc, total, before, shift, buffers.grown.index(GROUP), layouts)
    # Their product runs while the others are made.
    acc = warpgroup_mma(gl.convert_layout(early, layouts.weights), k.slice(0, _PART), acc, is_async=True)
    # Read again, so that the compiler keeps what is not urgent behind the weights before.
    finite = _finite(buffers.shifts.index(GROUP).load(gl.SliceLayout(1, layouts.part)))
    last, late = _pass_weights(last, finite, SCALE, slots[1], passed.index(GROUP * 2 + 1), layouts)
    acc = warpgroup_mma(gl.convert_layout(late, layouts.weights), k.slice(_PART, _PART), acc, is_async=True)
    added = gl.sum(first, 1) + gl.sum(last, 1)
    total = total + gl.convert_layout(added, gl.SliceLayout(1, layouts.logits))
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(barriers.k_empty.index(stage * 2 + GROUP))
    return acc, shift, total


@gluon.jit
def add_others(
    GROUP: gl.constexpr,
    HIDE: gl.constexpr,
    walked,
    acc,
    shift,
    total,
    tile,
    buffers,
    barriers,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Adds a tile of the other group behind which there is no own one."""
    acc, shift, total = _receive_others(
        GROUP, HIDE, walked, 0, acc, shift, total, tile, buffers, barriers, plan, layouts
    )
    acc = _start_others(GROUP, 0, acc, tile, buffers, barriers, plan)
    acc = _start_others(GROUP, 1, acc, tile, buffers, barriers, plan)
    return _end_others(GROUP, acc, tile, 0, barriers, plan), shift, total


@gluon.constexpr_function
def _units_of(plan):
    """Units of half of a tile's columns, whose products are started one after the other."""
    return max(plan.pieces, min(2, plan.half // _PANEL.value))


@gluon.jit
def _start_logits(
    GROUP: gl.constexpr, FIRST: gl.constexpr, LAST: gl.constexpr, x, tile, buffers, barriers, plan: gl.constexpr
):
    """Starts the products of queries and an own tile, units ``FIRST`` to ``LAST``, as they come."""
    UNITS: gl.constexpr = _units_of(plan)
    Q_UNITS: gl.constexpr = _GROUPS * UNITS
    K_UNITS: gl.constexpr = plan.stages * _GROUPS * UNITS
    COLUMNS: gl.constexpr = plan.half // UNITS
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_KEYS, COLUMNS], buffers.k.dtype)
    q = viewed(buffers.q, [Q_UNITS, _ROWS, COLUMNS], layout)
    k = viewed(buffers.k, [K_UNITS, _KEYS, COLUMNS], layout)
    stage, phase = stage_of(tile, plan)
    zero = unknown_zero(tile)
    for i in gl.static_range(FIRST, LAST):
        own = piece_of(GROUP, i, UNITS)
        if i * plan.pieces % UNITS == 0:
            _await_piece(piece_of(GROUP, i, UNITS) * plan.pieces // UNITS, stage, phase, barriers, plan)
        unit = k.index(stage * Q_UNITS + own)
        x = warpgroup_mma(q.index(zero + own), unit.permute((1, 0)), x, use_acc=i > 0, is_async=True)
    if plan.rest > 0 and FIRST < LAST and LAST == Q_UNITS:
        x = warpgroup_mma(buffers.q_rest.index(zero), buffers.k_rest.index(stage).permute((1, 0)), x, is_async=True)
    return x


@gluon.jit
def _receive_others(
    GROUP: gl.constexpr,
    HIDE: gl.constexpr,
    walked,
    BACK: gl.constexpr,
    acc,
    shift,
    total,
    tile,
    buffers,
    barriers,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Waits for a tile of the other group, ``BACK`` before that walked: output and denominator by its shift."""
    PIECES: gl.constexpr = plan.pieces
    stage, phase = stage_of(tile, plan)
    mbarrier.wait(barriers.shifts_full.index(1 - GROUP), tile // 2 & 1)
    passed = buffers.shifts.index(1 - GROUP).load(gl.SliceLayout(1, layouts.logits))
    acc, total = _shifted(acc, total, shift, passed, buffers.grown.index(1 - GROUP), layouts)
    for i in gl.static_range(PIECES):
        _await_piece(GROUP * PIECES + i, stage, phase, barriers, plan)
    if HIDE is not None:
        HIDE(GROUP, BACK, walked, tile, buffers, plan)
    return acc, passed, total


@gluon.jit
def _parts_of(weights, stage, plan: gl.constexpr):
    """The weights of the first and of the last half of a tile's keys, which are passed one after the other."""
    PARTS: gl.constexpr = plan.stages * 2
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_ROWS, _PART], weights.dtype)
    views = viewed(weights, [PARTS, _ROWS, _PART], layout)
    return views.index(stage * 2), views.index(stage * 2 + 1)


@gluon.jit
def _start_others(GROUP: gl.constexpr, PART: gl.constexpr, acc, tile, buffers, barriers, plan: gl.constexpr):
    """Starts the product of a part of received weights, once it has come, and the own half of their tile's columns."""
    stage, _ = stage_of(tile, plan)
    k = buffers.k.index(stage * 2 + GROUP)
    mbarrier.wait(barriers.weights_full.index((1 - GROUP) * 2 + PART), tile // 2 & 1)
    weights = _parts_of(buffers.weights, stage, plan)[PART]
    return warpgroup_mma(weights, k.slice(PART * _PART, _PART), acc, is_async=True)


@gluon.jit
def _end_others(GROUP: gl.constexpr, acc, tile, LATER: gl.constexpr, barriers, plan: gl.constexpr):
    """Waits for these products, behind which ``LATER`` were started, and frees the columns."""
    stage, _ = stage_of(tile, plan)
    acc = warpgroup_mma_wait(LATER, deps=[acc])
    mbarrier.arrive(barriers.k_empty.index(stage * 2 + GROUP))
    return acc


@gluon.jit
def _pass_shift(GROUP: gl.constexpr, x, shift, SCALE: gl.constexpr, buffers, barriers, layouts: gl.constexpr):
    """The shift of an own tile of logits ``x * SCALE``, passed on before weights are made."""
    # Scaled behind the maximum, and in the one instruction that subtracts it.
    highest = gl.max(x, 1) * SCALE
    grown = highest > shift + _GROWTH
    buffers.grown.index(GROUP).store(grown.to(gl.int32))
    buffers.shifts.index(GROUP).store(gl.where(grown, highest, shift))
    mbarrier.arrive(barriers.shifts_full.index(GROUP))
    # Read again, so that the compiler keeps what is not urgent behind the arrival.
    return buffers.shifts.index(GROUP).load(gl.SliceLayout(1, layouts.logits))


@gluon.jit
def _shifted(acc, total, before, shift, grown, layouts: gl.constexpr):
    """Output and denominator by a shift that has grown in some row, or in none, where nothing is to multiply."""
    if gl.max(grown.load(_EVERY_WARP), 0) > 0:
        correction = gl.exp2(before - _finite(shift))
        acc = acc * gl.convert_layout(correction, gl.SliceLayout(1, layouts.out))[:, None]
        total = total * correction
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
def _finite(shift):
    """The number to subtract from logits: a row may have seen nothing yet."""
    return gl.where(shift == float("-inf"), 0.0, shift)


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
