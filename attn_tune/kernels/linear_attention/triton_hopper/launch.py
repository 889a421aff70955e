"""The launches of walks on Hopper: descriptors, and the groups of warps of a program."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from attn_tune.kernels.lang.gluon.chunks import CHUNK, COLUMNS, NUMBERS, WARPS
from attn_tune.kernels.lang.gluon.chunks.numbers import COPIED
from attn_tune.kernels.lang.gluon.chunks.places import walk_of
from attn_tune.kernels.lang.gluon.chunks.states import load_start, offsets_of, store_end, store_nothing
from attn_tune.kernels.lang.triton.linear.decays import KINDS
from attn_tune.kernels.linear_attention.triton_hopper.walk import copy_chunks, new_buffers, walk_chunks

_CHUNK = gl.constexpr(CHUNK)
_COLUMNS = gl.constexpr(COLUMNS)
_NUMBERS = gl.constexpr(NUMBERS)
_WARPS = gl.constexpr(WARPS)
_KINDS = gl.constexpr(KINDS.value)
# Registers a thread: of the second group, and of the warp that copies.
_MULTIPLYING, _COPYING = gl.constexpr(240), gl.constexpr(24)


@gluon.jit
def scan_kernel(
    q,
    k,
    v,
    numbers,
    cu_seqlens,
    initial_state,
    added,
    kept,
    out,
    state,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """One program per tile of columns, head and segment of a sequence; tokens of no sequence get zeros."""
    walk = walk_of(cu_seqlens, static.tiles, static.segments, static)
    _run(q, k, v, numbers, walk, (initial_state, added, kept, out, state), static, plan, layouts)


@gluon.jit
def segments_kernel(
    k,
    v,
    numbers,
    cu_seqlens,
    added,
    kept,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """One program per tile of columns, head and segment of a sequence but the last: what it adds to the state."""
    walk = walk_of(cu_seqlens, static.tiles, static.segments - 1, static)
    _run(k, k, v, numbers, walk, (None, added, kept, v, None), static, plan, layouts)


@gluon.jit
def _run(q, k, v, numbers, walk, arrays, static: gl.constexpr, plan: gl.constexpr, layouts: gl.constexpr):
    """Runs the groups of warps that multiply, one or two, beside the warp that copies."""
    descriptors = _descriptors_of(q, k, v, numbers, arrays[3], static, plan)
    buffers = new_buffers(k.dtype.element_ty, static, plan)
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
def _descriptors_of(q, k, v, numbers, out, static: gl.constexpr, plan: gl.constexpr):
    """Descriptors of all that is copied, in the order of ``copy_chunks``."""
    dtype: gl.constexpr = k.dtype.element_ty
    H: gl.constexpr = static.width
    keys: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_CHUNK, H], dtype)
    square: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_CHUNK, _CHUNK], dtype)
    KEYS: gl.constexpr = static.key_heads * H
    VALUES: gl.constexpr = static.heads * static.v_width
    KINDS_: gl.constexpr = _KINDS * _CHUNK
    ALL: gl.constexpr = _NUMBERS * _CHUNK
    k_desc = tma.make_tensor_descriptor(k, [plan.tokens, KEYS], [KEYS, 1], [_CHUNK, H], keys)
    v_desc = tma.make_tensor_descriptor(v, [plan.tokens, VALUES], [VALUES, 1], [_CHUNK, _COLUMNS], square)
    q_desc = k_desc
    out_desc = v_desc
    numbers_desc = k_desc
    if plan.has_outputs:
        q_desc = tma.make_tensor_descriptor(q, [plan.tokens, KEYS], [KEYS, 1], [_CHUNK, H], keys)
        out_desc = tma.make_tensor_descriptor(out, [plan.tokens, VALUES], [VALUES, 1], [_CHUNK, _COLUMNS], square)
    if numbers is not None:
        numbers_desc = tma.make_tensor_descriptor(numbers, [plan.places, KINDS_], [KINDS_, 1], [1, ALL], COPIED)
    return q_desc, k_desc, v_desc, numbers_desc, out_desc


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
    initial_state, added, kept, out, state = arrays
    H: gl.constexpr = static.width
    V: gl.constexpr = static.v_width
    if walk.sequence >= 0:
        if plan.has_outputs:
            index = walk.sequence * static.heads + walk.head
            held = load_start(GROUP, walk, initial_state, static, plan, layouts, index)
            if static.segments > 1:
                held = _start_of_segment(GROUP, walk, held, added, kept, static, plan, layouts)
            held, _ = walk_chunks(GROUP, walk, held, out, descriptors, buffers, static, plan, layouts)
            store_end(GROUP, walk, held, state, static, plan, layouts)
        else:
            held = gl.full([_COLUMNS, H], 0.0, gl.float32, layouts.state)
            held, decay = walk_chunks(GROUP, walk, held, out, descriptors, buffers, static, plan, layouts)
            index = (walk.sequence * (static.segments - 1) + walk.segment) * static.heads + walk.head
            offsets = offsets_of(GROUP, walk, V, static, plan, layouts)
            gl.store(added + index.to(gl.int64) * (H * V) + offsets, held)
            if (GROUP == 0) & (walk.tile == 0):
                gl.store(kept + index, decay)
    elif plan.has_outputs:
        store_nothing(GROUP, walk, out, static, plan)


@gluon.jit
def _start_of_segment(
    GROUP: gl.constexpr, walk, held, added, kept, static: gl.constexpr, plan: gl.constexpr, layouts: gl.constexpr
):
    """The state at the start of a segment, from that of the sequence and what the segments before add."""
    for earlier in range(walk.segment):
        index = (walk.sequence * (static.segments - 1) + earlier) * static.heads + walk.head
        more = load_start(GROUP, walk, added, static, plan, layouts, index)
        held = held * gl.load(kept + index) + more
    return held
