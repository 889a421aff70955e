"""Device code of the walk over the chunks of a sequence on Hopper.

One warp copies what a chunk needs to shared memory, some chunks ahead. Each group of four warps holds 64 columns of a
state, turned (``lang.gluon.chunks.states``). Products of the outputs run while the next operand of the state's is made.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attn_tune.kernels.lang.gluon.chunks import CHUNK, COLUMNS, NUMBERS
from attn_tune.kernels.lang.gluon.chunks.numbers import COPIED, last_number, numbers_of
from attn_tune.kernels.lang.gluon.chunks.places import stage_of
from attn_tune.kernels.lang.gluon.chunks.states import await_chunk, store_outputs
from attn_tune.kernels.lang.gluon.names import new_barriers, start_copy

_CHUNK = gl.constexpr(CHUNK)
_COLUMNS = gl.constexpr(COLUMNS)
_NUMBERS = gl.constexpr(NUMBERS)
# The numbers of a token: beta, beta and the decay from the chunk's start, that alone, and the decay to its end.
BETA, BETA_FROM_START, FROM_START, TO_END = (gl.constexpr(i) for i in range(NUMBERS))


class Buffers(NamedTuple):
    """Slots in shared memory, and their barriers.

    Attributes:
      q, k: queries and keys ``[stages, chunk, H]``; without outputs ``q`` is ``k``.
      v: values ``[stages * groups, chunk, columns]``.
      solved, mixed: squares ``[stages, chunk, chunk]``; without outputs the second is the first.
      numbers: of each token, float32 ``[stages, 1, NUMBERS * chunk]``.
      out: outputs on their way ``[2 * groups, chunk, columns]``; without outputs ``v``.
      full, empty: barriers of each stage: all has come, and every group has read it.
    """

    q: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    solved: gl.shared_memory_descriptor
    mixed: gl.shared_memory_descriptor
    numbers: gl.shared_memory_descriptor
    out: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor


@gluon.jit
def new_buffers(dtype: gl.constexpr, static: gl.constexpr, plan: gl.constexpr):
    """Shared memory of a program."""
    STAGES: gl.constexpr = plan.stages
    GROUPS: gl.constexpr = plan.groups
    H: gl.constexpr = static.width
    key_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_CHUNK, H], dtype)
    square: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_CHUNK, _CHUNK], dtype)
    k = gl.allocate_shared_memory(dtype, [STAGES, _CHUNK, H], key_layout)
    v = gl.allocate_shared_memory(dtype, [STAGES * GROUPS, _CHUNK, _COLUMNS], square)
    solved = gl.allocate_shared_memory(dtype, [STAGES, _CHUNK, _CHUNK], square)
    q = k
    mixed = solved
    out = v
    if plan.has_outputs:
        q = gl.allocate_shared_memory(dtype, [STAGES, _CHUNK, H], key_layout)
        mixed = gl.allocate_shared_memory(dtype, [STAGES, _CHUNK, _CHUNK], square)
        out = gl.allocate_shared_memory(dtype, [2 * GROUPS, _CHUNK, _COLUMNS], square)
    numbers = gl.allocate_shared_memory(gl.float32, [STAGES, 1, _NUMBERS * _CHUNK], COPIED)
    return Buffers(q, k, v, solved, mixed, numbers, out, new_barriers(STAGES, 1), new_barriers(STAGES, GROUPS))


@gluon.jit
def copy_chunks(walk, descriptors, buffers, static: gl.constexpr, plan: gl.constexpr):
    """Copies what each chunk needs as far ahead as slots are free."""
    q_desc, k_desc, v_desc, solved_desc, mixed_desc, numbers_desc, _ = descriptors
    H: gl.constexpr = static.width
    GROUPS: gl.constexpr = plan.groups
    BYTES: gl.constexpr = 2 * _CHUNK * (H + _CHUNK + GROUPS * _COLUMNS) + 4 * _NUMBERS * _CHUNK
    OUTPUT_BYTES: gl.constexpr = 2 * _CHUNK * (H + _CHUNK) if plan.has_outputs else 0
    key_column = walk.head // static.group * H
    value_column = walk.head * static.v_width + walk.tile * (GROUPS * _COLUMNS)
    # Columns of the identity have no values; those of another tile are read, and not used.
    value_column = gl.where(walk.of_values, value_column, walk.head * static.v_width)
    if walk.sequence >= 0:
        for chunk in range(walk.first, walk.last):
            stage, phase = stage_of(chunk - walk.first, plan)
            full = buffers.full.index(stage)
            start = walk.begin + chunk * _CHUNK
            place = (walk.place + chunk) * static.heads + walk.head
            mbarrier.wait(buffers.empty.index(stage), phase ^ 1)
            mbarrier.expect(full, BYTES + OUTPUT_BYTES)
            start_copy(k_desc, [start, key_column], full, buffers.k.index(stage))
            start_copy(numbers_desc, [place, 0], full, buffers.numbers.index(stage))
            for group in gl.static_range(GROUPS):
                slot = buffers.v.index(stage * GROUPS + group)
                start_copy(v_desc, [start, value_column + group * _COLUMNS], full, slot)
            start_copy(solved_desc, [place * _CHUNK, 0], full, buffers.solved.index(stage))
            if plan.has_outputs:
                start_copy(q_desc, [start, key_column], full, buffers.q.index(stage))
                start_copy(mixed_desc, [place * _CHUNK, 0], full, buffers.mixed.index(stage))


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
    """The columns of a group of the state behind the chunks, from ``held`` before them; stores outputs."""
    dtype: gl.constexpr = buffers.k.dtype
    for chunk in range(walk.first, walk.last):
        stage, phase = stage_of(chunk - walk.first, plan)
        start = walk.begin + chunk * _CHUNK
        operand = gl.convert_layout(held.to(dtype), layouts.operand)
        k, v = await_chunk(GROUP, start, stage, phase, walk, buffers, plan)
        nothing = gl.full([_COLUMNS, _CHUNK], 0.0, gl.float32, layouts.tokens)
        known = warpgroup_mma(operand, k.permute((1, 0)), nothing, use_acc=False, is_async=True)
        values = v.permute((1, 0)).load(layouts.tokens).to(gl.float32) * by_token(BETA, stage, buffers, plan, layouts)
        if not plan.has_outputs:
            values = gl.where(walk.of_values, values, 0.0)
        weights = by_token(BETA_FROM_START, stage, buffers, plan, layouts)
        if plan.has_outputs:
            q = buffers.q.index(stage)
            found = warpgroup_mma(operand, q.permute((1, 0)), nothing, use_acc=False, is_async=True)
        known = warpgroup_mma_wait(1 if plan.has_outputs else 0, deps=[known])
        right = gl.convert_layout((values - known * weights).to(dtype), layouts.operand)
        square = buffers.solved.index(stage)
        update = warpgroup_mma(right, square.permute((1, 0)), nothing, use_acc=False, is_async=True)
        if plan.has_outputs:
            square = buffers.mixed.index(stage)
            mixed = warpgroup_mma(right, square.permute((1, 0)), nothing, use_acc=False, is_async=True)
        held = held * last_number(FROM_START, stage, buffers.numbers, plan)
        after = by_token(TO_END, stage, buffers, plan, layouts)
        update = warpgroup_mma_wait(1 if plan.has_outputs else 0, deps=[update])
        update = gl.convert_layout((update * after).to(dtype), layouts.update)
        held = warpgroup_mma(update, k, held, is_async=True)
        if plan.has_outputs:
            before = by_token(FROM_START, stage, buffers, plan, layouts)
            mixed, found = warpgroup_mma_wait(1, deps=[mixed, found])
            found = ((found * before + mixed) * static.scale).to(dtype)
            store_outputs(GROUP, found, chunk, walk, out, descriptors[6], buffers.out, static, plan)
        held = warpgroup_mma_wait(0, deps=[held])
        mbarrier.arrive(buffers.empty.index(stage))
    if plan.has_outputs:
        tma.store_wait(0)
    return held


@gluon.jit
def by_token(WHICH: gl.constexpr, stage, buffers, plan: gl.constexpr, layouts: gl.constexpr):
    """One of the numbers of each token, to be multiplied with what has a column a token."""
    return numbers_of(WHICH, stage, buffers.numbers, gl.SliceLayout(0, layouts.tokens), plan)[None, :]
