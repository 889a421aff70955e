"""Device code of two groups of warps that take turns: each computes the logits of every other tile of keys.

While one computes logits the other has its softmax to do. Weights are passed on in the panel of shared memory whose
columns of keys were read already.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attn_tune.kernels.lang.gluon.names import synchronize
from attn_tune.kernels.sparse_mla.triton_hopper.config import KEYS, ROWS
from attn_tune.kernels.sparse_mla.triton_hopper.gathering import copy_columns, named_keys, rows_layout
from attn_tune.kernels.sparse_mla.triton_hopper.walk import LOG2E, first_index, store_columns

_ROWS = gl.constexpr(ROWS)
_KEYS = gl.constexpr(KEYS)


class Slots(NamedTuple):
    """Two tiles of keys in shared memory, one of each group.

    Attributes:
      q, q_rest: queries ``[1, 64, width]``, and the columns behind ``[1, 64, 64]`` or None.
      k, k_rest: keys ``[2, 64, width]``, and the columns behind ``[2, 64, 64]`` or None.
      halves: their columns by group, ``[4, 64, half]``.
      weights: what each group passes to the other, ``[2, 64, 64]``: the bytes of ``k_rest`` where there are some.
      maxima, totals: what it passes of each row, ``[2, 64]``.
    """

    q: gl.shared_memory_descriptor
    q_rest: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    k_rest: gl.shared_memory_descriptor
    halves: gl.shared_memory_descriptor
    weights: gl.shared_memory_descriptor
    maxima: gl.shared_memory_descriptor
    totals: gl.shared_memory_descriptor


class Signals(NamedTuple):
    """``full`` for each tile, ``empty`` for each half of its columns, and for each group what it passes."""

    k_full: gl.shared_memory_descriptor
    k_empty: gl.shared_memory_descriptor
    maxima_full: gl.shared_memory_descriptor
    weights_full: gl.shared_memory_descriptor
    totals_full: gl.shared_memory_descriptor


@gluon.jit
def gather_in_turns(kv, indices, slots, signals, plan: gl.constexpr):
    """Gathers two tiles at a time, halves of columns in the order in which the groups are done with them."""
    query, first, count = first_index(plan)
    kv += query // plan.q_len * plan.kv_len * plan.head_dim
    indices += query * plan.selected
    layout: gl.constexpr = rows_layout(plan.half)
    HALF: gl.constexpr = plan.half
    for j in range((count + 1) // 2):
        start = (first + 2 * j) * _KEYS
        even = named_keys(indices, start, _KEYS, layout, plan)
        odd = named_keys(indices, start + _KEYS, _KEYS, layout, plan)
        parity = (j & 1) ^ 1
        mbarrier.wait(signals.k_empty.index(0), parity)
        copy_columns(slots.halves.index(0), kv, even, 0, HALF, layout, plan)
        mbarrier.wait(signals.k_empty.index(3), parity)
        copy_columns(slots.halves.index(3), kv, odd, HALF, HALF, layout, plan)
        mbarrier.wait(signals.k_empty.index(1), parity)
        copy_columns(slots.halves.index(1), kv, even, HALF, HALF, layout, plan)
        _copy_rest(kv, indices, start, 0, slots, plan)
        async_copy.mbarrier_arrive(signals.k_full.index(0), increment_count=False)
        mbarrier.wait(signals.k_empty.index(2), parity)
        copy_columns(slots.halves.index(2), kv, odd, 0, HALF, layout, plan)
        _copy_rest(kv, indices, start + _KEYS, 1, slots, plan)
        async_copy.mbarrier_arrive(signals.k_full.index(1), increment_count=False)


@gluon.jit
def _copy_rest(kv, indices, start, slot: gl.constexpr, slots, plan: gl.constexpr):
    if plan.rest > 0:
        layout: gl.constexpr = rows_layout(plan.rest)
        named = named_keys(indices, start, _KEYS, layout, plan)
        copy_columns(slots.k_rest.index(slot), kv, named, plan.width, plan.rest, layout, plan)


@gluon.jit
def attend_in_turns(
    GROUP: gl.constexpr, indices, sinks, out, lse, slots, signals, plan: gl.constexpr, layouts: gl.constexpr
):
    """Computes one half of the output's columns of a tile of heads."""
    query, first, count = first_index(plan)
    head = gl.program_id(0) % plan.tiles * _ROWS + gl.arange(0, _ROWS, gl.SliceLayout(1, layouts.logits))
    maximum = gl.full([_ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, layouts.logits))
    total = gl.full([_ROWS], 0.0, gl.float32, gl.SliceLayout(1, layouts.logits))
    if sinks is not None:
        # The first part counts the sink; one of minus infinity adds nothing.
        sink = gl.load(sinks + head, mask=head < plan.heads, other=float("-inf")) * LOG2E
        maximum = gl.where(first == 0, sink, maximum)
        if GROUP == 0:
            total = gl.where(maximum == float("-inf"), 0.0, 1.0)
    acc = gl.full([_ROWS, plan.half], 0.0, gl.float32, layouts.out)
    place = (first + GROUP) * _KEYS + gl.arange(0, _KEYS, gl.SliceLayout(0, layouts.logits))
    indices += query * plan.selected
    named = gl.load(indices + place, mask=place < plan.selected, other=-1)
    for j in range((count + 1) // 2):
        valid = (named >= 0) & (named < plan.kv_len)
        # Those of the next tile, which are there when it is.
        place += 2 * _KEYS
        named = gl.load(indices + place, mask=place < plan.selected, other=-1)
        x = _logits(GROUP, valid, j, slots, signals, plan, layouts)
        if GROUP == 0:
            acc, maximum, total = _first_turn(acc, maximum, total, x, j, slots, signals, plan, layouts)
        else:
            acc, maximum, total = _second_turn(acc, maximum, total, x, j, slots, signals, plan, layouts)
    slots.totals.index(GROUP).store(total)
    synchronize()
    mbarrier.arrive(signals.totals_full.index(GROUP))
    mbarrier.wait(signals.totals_full.index(1 - GROUP), 0)
    total += slots.totals.index(1 - GROUP).load(gl.SliceLayout(1, layouts.logits))
    store_columns(GROUP, acc, maximum, total, query, head, out, lse, plan, layouts)


@gluon.jit
def _logits(GROUP: gl.constexpr, valid, j, slots, signals, plan: gl.constexpr, layouts: gl.constexpr):
    """The logits of a group's tile, not scaled yet; minus infinity where nothing is named."""
    mbarrier.wait(signals.k_full.index(GROUP), j & 1)
    # What was copied by threads is read by the tensor cores.
    fence_async_shared()
    x = gl.full([_ROWS, _KEYS], 0.0, gl.float32, layouts.logits)
    x = warpgroup_mma(slots.q.index(0), slots.k.index(GROUP).permute((1, 0)), x, use_acc=False, is_async=True)
    if plan.rest > 0:
        x = warpgroup_mma(slots.q_rest.index(0), slots.k_rest.index(GROUP).permute((1, 0)), x, is_async=True)
    x = warpgroup_mma_wait(0, deps=[x])
    return gl.where(valid[None, :], x, float("-inf"))


@gluon.jit
def _first_turn(acc, maximum, total, x, j, slots, signals, plan: gl.constexpr, layouts: gl.constexpr):
    """Adds the own tile by the maximum so far, then the other group's by the maximum of both."""
    own = gl.maximum(maximum, gl.max(x, 1) * plan.scale)
    slots.maxima.index(0).store(own)
    synchronize()
    mbarrier.arrive(signals.maxima_full.index(0))
    # A row may have seen nothing yet.
    shift = gl.where(own == float("-inf"), 0.0, own)
    weights = gl.exp2(x * plan.scale - shift[:, None])
    correction = gl.exp2(maximum - shift)
    total = total * correction + gl.sum(weights, 1)
    operand = gl.convert_layout(weights.to(slots.k.dtype), layouts.weights)
    acc = acc * gl.convert_layout(correction, gl.SliceLayout(1, layouts.out))[:, None]
    acc = warpgroup_mma(operand, slots.halves.index(0), acc, is_async=True)

    mbarrier.wait(signals.maxima_full.index(1), j & 1)
    both = slots.maxima.index(1).load(gl.SliceLayout(1, layouts.logits))
    correction = gl.exp2(own - gl.where(both == float("-inf"), 0.0, both))
    slots.weights.index(0).store((weights * correction[:, None]).to(slots.k.dtype))
    fence_async_shared()
    synchronize()
    mbarrier.arrive(signals.weights_full.index(0))
    total *= correction
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(signals.k_empty.index(0))
    acc = acc * gl.convert_layout(correction, gl.SliceLayout(1, layouts.out))[:, None]
    mbarrier.wait(signals.k_full.index(1), j & 1)
    mbarrier.wait(signals.weights_full.index(1), j & 1)
    fence_async_shared()
    acc = warpgroup_mma(slots.weights.index(1), slots.halves.index(2), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(signals.k_empty.index(2))
    return acc, both, total


@gluon.jit
def _second_turn(acc, maximum, total, x, j, slots, signals, plan: gl.constexpr, layouts: gl.constexpr):
    """Adds both tiles by the maximum of both."""
    own = gl.max(x, 1) * plan.scale
    mbarrier.wait(signals.maxima_full.index(0), j & 1)
    both = gl.maximum(own, slots.maxima.index(0).load(gl.SliceLayout(1, layouts.logits)))
    slots.maxima.index(1).store(both)
    synchronize()
    mbarrier.arrive(signals.maxima_full.index(1))
    shift = gl.where(both == float("-inf"), 0.0, both)
    weights = gl.exp2(x * plan.scale - shift[:, None])
    correction = gl.exp2(maximum - shift)
    total = total * correction + gl.sum(weights, 1)
    weights = weights.to(slots.k.dtype)
    slots.weights.index(1).store(weights)
    fence_async_shared()
    synchronize()
    mbarrier.arrive(signals.weights_full.index(1))
    operand = gl.convert_layout(weights, layouts.weights)
    acc = acc * gl.convert_layout(correction, gl.SliceLayout(1, layouts.out))[:, None]
    acc = warpgroup_mma(operand, slots.halves.index(3), acc, is_async=True)
    mbarrier.wait(signals.weights_full.index(0), j & 1)
    # Its keys had come before its weights were made; what other threads copied is fenced here too.
    mbarrier.wait(signals.k_full.index(0), j & 1)
    fence_async_shared()
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(signals.k_empty.index(3))
    acc = warpgroup_mma(slots.weights.index(0), slots.halves.index(1), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(signals.k_empty.index(1))
    return acc, both, total
