"""Device code of the walk over the chunks of a sequence on Hopper.

In a chunk that starts with the state ``S``, with ``D[i, j]`` the decay from token ``j`` to ``i``, ``f[i]`` that from
the start to ``i`` and ``e[j]`` that from ``j`` to the end::

    out[i] = scale (f[i] S^T q[i] + sum over j <= i of D[i, j] (q[i] . k[j]) v[j])
    S'     = f[last] S + sum over j of e[j] k[j] v[j]^T

One warp copies what a chunk needs to shared memory, some chunks ahead. Each group of four warps holds 64 columns of a
state, turned (``lang.gluon.chunks.states``), and makes the weights ``D[i, j] (q[i] . k[j])`` of a chunk for itself.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attn_tune.kernels.lang.gluon.chunks import CHUNK, COLUMNS, NUMBERS
from attn_tune.kernels.lang.gluon.chunks.numbers import COPIED, last_number, numbers_of
from attn_tune.kernels.lang.gluon.chunks.places import stage_of
from attn_tune.kernels.lang.gluon.chunks.states import await_chunk, store_outputs
from attn_tune.kernels.lang.gluon.names import new_barriers, start_copy, synchronize

_CHUNK = gl.constexpr(CHUNK)
_COLUMNS = gl.constexpr(COLUMNS)
_NUMBERS = gl.constexpr(NUMBERS)
# The numbers of a token (``lang.triton.linear.decays``).
_FROM_START, _TO_END, _SUM, _RESETS = (gl.constexpr(i) for i in range(NUMBERS))


class Buffers(NamedTuple):
    """Slots in shared memory, and their barriers.

    Attributes:
      q, k: queries and keys ``[stages, chunk, H]``; without outputs ``q`` is ``k``.
      v: values ``[stages * groups, chunk, columns]``.
      numbers: of each token, float32 ``[stages, 1, NUMBERS * chunk]``; without gates of one stage, and not used.
      weights: of a group ``[groups, chunk, chunk]``; without outputs ``v``.
      out: outputs on their way ``[2 * groups, chunk, columns]``; without outputs ``v``.
      full, empty: barriers of each stage: all has come, and every group has read it.
    """

    q: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    numbers: gl.shared_memory_descriptor
    weights: gl.shared_memory_descriptor
    out: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor


@gluon.jit
def new_buffers(dtype: gl.constexpr, static: gl.constexpr, plan: gl.constexpr):
    """Shared memory of a program."""
    STAGES: gl.constexpr = plan.stages
    GROUPS: gl.constexpr = plan.groups
    H: gl.constexpr = static.width
    NUMBERED: gl.constexpr = 1 if static.gate == "none" else STAGES
    key_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_CHUNK, H], dtype)
    square: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_CHUNK, _CHUNK], dtype)
    k = gl.allocate_shared_memory(dtype, [STAGES, _CHUNK, H], key_layout)
    v = gl.allocate_shared_memory(dtype, [STAGES * GROUPS, _CHUNK, _COLUMNS], square)
    q = k
    weights = v
    out = v
    if plan.has_outputs:
        q = gl.allocate_shared_memory(dtype, [STAGES, _CHUNK, H], key_layout)
        weights = gl.allocate_shared_memory(dtype, [GROUPS, _CHUNK, _CHUNK], square)
        out = gl.allocate_shared_memory(dtype, [2 * GROUPS, _CHUNK, _COLUMNS], square)
    numbers = gl.allocate_shared_memory(gl.float32, [NUMBERED, 1, _NUMBERS * _CHUNK], COPIED)
    return Buffers(q, k, v, numbers, weights, out, new_barriers(STAGES, 1), new_barriers(STAGES, GROUPS))


@gluon.jit
def copy_chunks(walk, descriptors, buffers, static: gl.constexpr, plan: gl.constexpr):
    """Copies what each chunk needs as far ahead as slots are free."""
    q_desc, k_desc, v_desc, numbers_desc, _ = descriptors
    H: gl.constexpr = static.width
    GROUPS: gl.constexpr = plan.groups
    HAS_GATES: gl.constexpr = static.gate != "none"
    BYTES: gl.constexpr = 2 * _CHUNK * (H + GROUPS * _COLUMNS) + (4 * _NUMBERS * _CHUNK if HAS_GATES else 0)
    QUERY_BYTES: gl.constexpr = 2 * _CHUNK * H if plan.has_outputs else 0
    key_column = walk.head // static.group * H
    value_column = walk.head * static.v_width + walk.tile * (GROUPS * _COLUMNS)
    if walk.sequence >= 0:
        for chunk in range(walk.first, walk.last):
            stage, phase = stage_of(chunk - walk.first, plan)
            full = buffers.full.index(stage)
            start = walk.begin + chunk * _CHUNK
            mbarrier.wait(buffers.empty.index(stage), phase ^ 1)
            mbarrier.expect(full, BYTES + QUERY_BYTES)
            if plan.has_outputs:
                start_copy(q_desc, [start, key_column], full, buffers.q.index(stage))
            start_copy(k_desc, [start, key_column], full, buffers.k.index(stage))
            for group in gl.static_range(GROUPS):
                slot = buffers.v.index(stage * GROUPS + group)
                start_copy(v_desc, [start, value_column + group * _COLUMNS], full, slot)
            if HAS_GATES:
                place = (walk.place + chunk) * static.heads + walk.head
                start_copy(numbers_desc, [place, 0], full, buffers.numbers.index(stage))


@gluon.jit
def walk_chunks(
    GROUP: gl.constexpr,
    walk,
    held,
    out,
    descriptors,
    buffers,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """The columns of a group of the state behind the chunks, from ``held`` before them, and the decay over all of them.

    Outputs are stored.
    """
    dtype: gl.constexpr = buffers.k.dtype
    HAS_GATES: gl.constexpr = static.gate != "none"
    BY_TOKEN: gl.constexpr = gl.SliceLayout(0, layouts.tokens)
    kept = (walk.first * 0 + 1).to(gl.float32)
    for chunk in range(walk.first, walk.last):
        stage, phase = stage_of(chunk - walk.first, plan)
        start = walk.begin + chunk * _CHUNK
        operand = gl.convert_layout(held.to(dtype), layouts.operand)
        k, v = await_chunk(GROUP, start, stage, phase, walk, buffers, plan)
        if plan.has_outputs:
            q = buffers.q.index(stage)
            nothing = gl.full([_COLUMNS, _CHUNK], 0.0, gl.float32, layouts.tokens)
            weights = warpgroup_mma(q, k.permute((1, 0)), nothing, use_acc=False, is_async=True)
            found = warpgroup_mma(operand, q.permute((1, 0)), nothing, use_acc=False, is_async=True)
        values = v.permute((1, 0)).load(layouts.tokens)
        late = values
        if HAS_GATES:
            factor = last_number(_FROM_START, stage, buffers.numbers, plan)
            held = held * factor
            kept = kept * factor
            after = numbers_of(_TO_END, stage, buffers.numbers, BY_TOKEN, plan)
            late = (values.to(gl.float32) * after[None, :]).to(dtype)
        held = warpgroup_mma(gl.convert_layout(late, layouts.update), k, held, is_async=True)
        if plan.has_outputs:
            weights = warpgroup_mma_wait(2, deps=[weights])
            slot = buffers.weights.index(GROUP)
            slot.store((weights * _pair_decays(stage, buffers, static, plan, layouts)).to(dtype))
            fence_async_shared()
            synchronize()
            found = warpgroup_mma_wait(1, deps=[found])
            if HAS_GATES:
                found = found * numbers_of(_FROM_START, stage, buffers.numbers, BY_TOKEN, plan)[None, :]
            found = warpgroup_mma(
                gl.convert_layout(values, layouts.operand), slot.permute((1, 0)), found, is_async=True
            )
            found = warpgroup_mma_wait(0, deps=[found])
        held = warpgroup_mma_wait(0, deps=[held])
        mbarrier.arrive(buffers.empty.index(stage))
        if plan.has_outputs:
            found = (found * static.scale).to(dtype)
            store_outputs(GROUP, found, chunk, walk, out, descriptors[4], buffers.out, static, plan)
    if plan.has_outputs:
        tma.store_wait(0)
    return held, kept


@gluon.jit
def _pair_decays(stage, buffers, static: gl.constexpr, plan: gl.constexpr, layouts: gl.constexpr):
    """The decay from each token of a chunk (columns) to each later one (rows), one on the diagonal, zero above it."""
    BY_ROW: gl.constexpr = gl.SliceLayout(1, layouts.tokens)
    BY_COLUMN: gl.constexpr = gl.SliceLayout(0, layouts.tokens)
    is_kept = gl.arange(0, _CHUNK, BY_ROW)[:, None] >= gl.arange(0, _CHUNK, BY_COLUMN)[None, :]
    if static.gate == "none":
        decays = gl.where(is_kept, 1.0, 0.0)
    else:
        sums = numbers_of(_SUM, stage, buffers.numbers, BY_ROW, plan)[:, None]
        logs = sums - numbers_of(_SUM, stage, buffers.numbers, BY_COLUMN, plan)[None, :]
        passed = numbers_of(_RESETS, stage, buffers.numbers, BY_ROW, plan)[:, None]
        is_kept = is_kept & (passed == numbers_of(_RESETS, stage, buffers.numbers, BY_COLUMN, plan)[None, :])
        decays = gl.exp2(gl.where(is_kept, gl.minimum(logs, 0.0), float("-inf")))
    return decays
