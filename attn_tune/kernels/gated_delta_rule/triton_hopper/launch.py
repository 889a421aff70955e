"""Device code of a program that walks on Hopper: its descriptors, and its groups of warps."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from attn_tune.kernels.gated_delta_rule.triton_hopper.walk import copy_chunks, walk_chunks
from attn_tune.kernels.lang.gluon.chunks import CHUNK, COLUMNS, NUMBERS, WARPS
from attn_tune.kernels.lang.gluon.chunks.numbers import COPIED
from attn_tune.kernels.lang.gluon.chunks.states import load_start, offsets_of, store_end, store_nothing

_CHUNK = gl.constexpr(CHUNK)
_COLUMNS = gl.constexpr(COLUMNS)
_NUMBERS = gl.constexpr(NUMBERS)
_WARPS = gl.constexpr(WARPS)
# Registers a thread: of the second group, and of the warp that copies.
_MULTIPLYING, _COPYING = gl.constexpr(240), gl.constexpr(24)


@gluon.jit
def run(walk, arrays, descriptors, buffers, static: gl.constexpr, plan: gl.constexpr, layouts: gl.constexpr):
    """Runs the groups of warps that multiply, one or two, beside the warp that copies.

    ``arrays`` are starts, outputs and final states of a walk that has outputs; else None, ``M`` and ``Z``.
    """
    if plan.groups == 1:
        gl.warp_specialize(
            [
                (_multiply_0, (walk, arrays, descriptors, buffers, static, plan, layouts)),
                (copy_chunks, (walk, descriptors, buffers, static, plan)),
            ],
            [1],
            [_COPYING],
        )
    else:
        gl.warp_specialize(
            [
                (_multiply_0, (walk, arrays, descriptors, buffers, static, plan, layouts)),
                (_multiply_1, (walk, arrays, descriptors, buffers, static, plan, layouts)),
                (copy_chunks, (walk, descriptors, buffers, static, plan)),
            ],
            [_WARPS, 1],
            [_MULTIPLYING, _COPYING],
        )


@gluon.jit
def _multiply_0(walk, arrays, descriptors, buffers, static: gl.constexpr, plan: gl.constexpr, layouts: gl.constexpr):
    _multiply(0, walk, arrays, descriptors, buffers, static, plan, layouts)


@gluon.jit
def _multiply_1(walk, arrays, descriptors, buffers, static: gl.constexpr, plan: gl.constexpr, layouts: gl.constexpr):
    _multiply(1, walk, arrays, descriptors, buffers, static, plan, layouts)


@gluon.jit
def _multiply(
    GROUP: gl.constexpr,
    walk,
    arrays,
    descriptors,
    buffers,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    if plan.has_outputs:
        _scan(GROUP, walk, arrays, descriptors, buffers, static, plan, layouts)
    else:
        _transit(GROUP, walk, arrays, descriptors, buffers, static, plan, layouts)


@gluon.jit
def _scan(
    GROUP: gl.constexpr,
    walk,
    arrays,
    descriptors,
    buffers,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Stores the outputs of a segment, and the final state behind the last one."""
    starts, out, state = arrays
    if walk.sequence >= 0:
        index = (walk.sequence * static.segments + walk.segment) * static.heads + walk.head
        held = load_start(GROUP, walk, starts, static, plan, layouts, index)
        held = walk_chunks(GROUP, walk, held, out, descriptors, buffers, static, plan, layouts)
        store_end(GROUP, walk, held, state, static, plan, layouts)
    else:
        store_nothing(GROUP, walk, out, static, plan)


@gluon.jit
def _transit(
    GROUP: gl.constexpr,
    walk,
    arrays,
    descriptors,
    buffers,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """Stores some columns of ``Z``, or of ``M``, which starts from the identity."""
    _, matrices, ends = arrays
    H: gl.constexpr = static.width
    V: gl.constexpr = static.v_width
    column = (walk.tile * plan.groups + GROUP) * _COLUMNS + gl.arange(0, _COLUMNS, gl.SliceLayout(1, layouts.state))
    row = gl.arange(0, H, gl.SliceLayout(0, layouts.state))
    is_one = (row[None, :] == column[:, None]) & (walk.of_values == 0)
    held = gl.where(is_one, 1.0, 0.0)
    held = walk_chunks(GROUP, walk, held, ends, descriptors, buffers, static, plan, layouts)
    index = (walk.sequence * static.segments + walk.segment) * static.heads + walk.head
    if walk.of_values:
        gl.store(ends + index.to(gl.int64) * (H * V) + offsets_of(GROUP, walk, V, static, plan, layouts), held)
    else:
        gl.store(matrices + index.to(gl.int64) * (H * H) + offsets_of(GROUP, walk, H, static, plan, layouts), held)


@gluon.jit
def descriptors_of(q, k, v, solved, mixed, numbers, out, static: gl.constexpr, plan: gl.constexpr):
    """Descriptors of all that is copied, in the order of ``copy_chunks``."""
    dtype: gl.constexpr = k.dtype.element_ty
    H: gl.constexpr = static.width
    keys: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_CHUNK, H], dtype)
    square: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_CHUNK, _CHUNK], dtype)
    KEYS: gl.constexpr = static.key_heads * H
    VALUES: gl.constexpr = static.heads * static.v_width
    SQUARES: gl.constexpr = plan.places * _CHUNK
    ALL: gl.constexpr = _NUMBERS * _CHUNK
    k_desc = tma.make_tensor_descriptor(k, [plan.tokens, KEYS], [KEYS, 1], [_CHUNK, H], keys)
    v_desc = tma.make_tensor_descriptor(v, [plan.tokens, VALUES], [VALUES, 1], [_CHUNK, _COLUMNS], square)
    solved_desc = tma.make_tensor_descriptor(solved, [SQUARES, _CHUNK], [_CHUNK, 1], [_CHUNK, _CHUNK], square)
    numbers_desc = tma.make_tensor_descriptor(numbers, [plan.places, ALL], [ALL, 1], [1, ALL], COPIED)
    q_desc = k_desc
    mixed_desc = solved_desc
    out_desc = v_desc
    if plan.has_outputs:
        q_desc = tma.make_tensor_descriptor(q, [plan.tokens, KEYS], [KEYS, 1], [_CHUNK, H], keys)
        mixed_desc = tma.make_tensor_descriptor(mixed, [SQUARES, _CHUNK], [_CHUNK, 1], [_CHUNK, _CHUNK], square)
        out_desc = tma.make_tensor_descriptor(out, [plan.tokens, VALUES], [VALUES, 1], [_CHUNK, _COLUMNS], square)
    return q_desc, k_desc, v_desc, solved_desc, mixed_desc, numbers_desc, out_desc
