"""Device code of the groups of warps that multiply."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attn_tune.kernels.lang.gluon.latents import KEYS, ROWS
from attn_tune.kernels.lang.gluon.latents.device import (
    LN2,
    LOG2E,
    add_others,
    await_logits,
    end_tiles,
    rounded_rows,
    start_tiles,
    sum_totals,
)

_ROWS = gl.constexpr(ROWS)
_KEYS = gl.constexpr(KEYS)


@gluon.jit
def first_index(plan: gl.constexpr):
    """The query of a program, the first of its indices, the end of these, and how many pairs of tiles they are.

    A pair at least: one that names nothing where a program has no indices.
    """
    part = gl.program_id(0) // plan.tiles % plan.splits
    query = (gl.program_id(0) // (plan.tiles * plan.splits)).to(gl.int64)
    first = part * plan.share * _KEYS
    end = gl.minimum(first + plan.share * _KEYS, plan.selected)
    return query, first, end, gl.maximum((end - first + 2 * _KEYS - 1) // (2 * _KEYS), 1)


@gluon.jit
def attend(GROUP: gl.constexpr, indices, sinks, out, lse, buffers, barriers, plan: gl.constexpr, layouts: gl.constexpr):
    """Computes one half of the output's columns of a tile of heads."""
    query, first, end, pairs = first_index(plan)
    head = gl.program_id(0) % plan.tiles * _ROWS + gl.arange(0, _ROWS, gl.SliceLayout(1, layouts.logits))
    shift = gl.full([_ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, layouts.logits))
    total = gl.full([_ROWS], 0.0, gl.float32, gl.SliceLayout(1, layouts.logits))
    if sinks is not None:
        # The first part counts the sink; one of minus infinity adds nothing.
        sink = gl.load(sinks + head, mask=head < plan.heads, other=float("-inf")) * LOG2E
        shift = gl.where(first == 0, sink, shift)
        if GROUP == 0:
            total = gl.where(shift == float("-inf"), 0.0, 1.0)
    acc = gl.full([_ROWS, plan.half], 0.0, gl.float32, layouts.out)
    named = (indices + query * plan.selected, first, end)
    tile = pairs * 0
    if GROUP == 0:
        acc, shift, total = _step(0, True, acc, shift, total, named, tile, buffers, barriers, plan, layouts)
        tile += 1
    for _ in range(GROUP ^ 1, pairs):
        tile += 1
        acc, shift, total = _step(GROUP, False, acc, shift, total, named, tile, buffers, barriers, plan, layouts)
        tile += 1
    if GROUP == 0:
        acc, shift, total = add_others(0, None, None, acc, shift, total, tile, buffers, barriers, plan, layouts)
    total = sum_totals(GROUP, total, 0, buffers, barriers, layouts)
    _store(GROUP, acc, shift, total, query, head, out, lse, buffers, plan, layouts)


@gluon.jit
def _step(
    GROUP: gl.constexpr,
    IS_FIRST: gl.constexpr,
    acc,
    shift,
    total,
    named,
    tile,
    buffers,
    barriers,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """An own tile and, before it, that of the other group: accumulator, shift, and the own denominator."""
    indices, first, end = named
    acc, shift, total, x = start_tiles(
        GROUP, IS_FIRST, None, None, acc, shift, total, tile, buffers, barriers, plan, layouts
    )
    place = first + tile * _KEYS + gl.arange(0, _KEYS, gl.SliceLayout(0, layouts.logits))
    key = gl.load(indices + place, mask=place < end, other=-1)
    x = await_logits(IS_FIRST, x, plan)
    x = gl.where(((key >= 0) & (key < plan.kv_len))[None, :], x, float("-inf"))
    return end_tiles(
        GROUP, IS_FIRST, None, None, acc, x, shift, total, tile, plan.scale, buffers, barriers, plan, layouts
    )


@gluon.jit
def _store(
    GROUP: gl.constexpr,
    acc,
    shift,
    total,
    query,
    head,
    out,
    lse,
    buffers,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Stores the columns of a group: of the output, or of a part of it in float32."""
    seen = total > 0
    some = gl.where(seen, total, 1.0)
    part = (gl.program_id(0) // plan.tiles % plan.splits).to(gl.int64)
    base = (part * (gl.num_programs(0) // (plan.tiles * plan.splits)) + query) * plan.heads
    if GROUP == 0:
        log_sum = gl.where(seen, (shift + gl.log2(some)) * LN2, float("-inf"))
        gl.store(lse + base + head, log_sum, mask=head < plan.heads)
    factor = gl.where(seen, 1.0 / some, 0.0)
    if plan.splits == 1:
        values = rounded_rows(GROUP, acc, factor, buffers, plan, layouts)
    else:
        values = acc * gl.convert_layout(factor, gl.SliceLayout(1, layouts.out))[:, None]
    row = gl.program_id(0) % plan.tiles * _ROWS + gl.arange(0, _ROWS, gl.SliceLayout(1, values.type.layout))
    column = GROUP * plan.half + gl.arange(0, plan.half, gl.SliceLayout(0, values.type.layout))
    inside = (row < plan.heads)[:, None] & (column < plan.v_head_dim)[None, :]
    places = (base + row)[:, None] * plan.v_head_dim + column[None, :]
    gl.store(out + places, values, mask=inside)
