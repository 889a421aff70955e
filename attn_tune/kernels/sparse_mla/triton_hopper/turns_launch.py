"""The kernel whose two groups of warps take turns."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from attn_tune.kernels.lang.gluon.names import new_barriers, synchronize, viewed
from attn_tune.kernels.sparse_mla.triton_hopper.config import GROUPS, KEYS, PANEL, ROWS, WARPS
from attn_tune.kernels.sparse_mla.triton_hopper.gathering import copy_queries
from attn_tune.kernels.sparse_mla.triton_hopper.turns import Signals, Slots, attend_in_turns, gather_in_turns

_WARPS = gl.constexpr(WARPS)
_GROUPS = gl.constexpr(GROUPS)
_ROWS = gl.constexpr(ROWS)
_KEYS = gl.constexpr(KEYS)
_PANEL = gl.constexpr(PANEL)
_THREADS = gl.constexpr(32 * WARPS)
_MULTIPLYING, _GATHERING = gl.constexpr(216), gl.constexpr(72)


@gluon.jit
def turn_kernel(q, kv, indices, sinks, out, lse, plan: gl.constexpr, layouts: gl.constexpr):
    """One program per query, share of its indices, and tile of heads."""
    dtype: gl.constexpr = q.dtype.element_ty
    wide: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_ROWS, plan.width], dtype)
    half_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_KEYS, plan.half], dtype)
    panel: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_KEYS, _PANEL], dtype)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    keys = gl.allocate_shared_memory(dtype, [_GROUPS, _KEYS, plan.width], wide)
    halves: gl.constexpr = [_GROUPS * _GROUPS, _KEYS, plan.half]
    # Of a tile whose logits are known nobody reads the columns behind those of values: weights are passed there.
    weights = gl.allocate_shared_memory(dtype, [_GROUPS, _KEYS, _PANEL], panel)
    q_rest = None
    k_rest = None
    if plan.rest > 0:
        q_rest = gl.allocate_shared_memory(dtype, [1, _ROWS, _PANEL], panel)
        k_rest = weights
    slots = Slots(
        gl.allocate_shared_memory(dtype, [1, _ROWS, plan.width], wide),
        q_rest,
        keys,
        k_rest,
        viewed(keys, halves, half_layout),
        weights,
        gl.allocate_shared_memory(gl.float32, [_GROUPS, _ROWS], plain),
        gl.allocate_shared_memory(gl.float32, [_GROUPS, _ROWS], plain),
    )
    signals = Signals(
        new_barriers(_GROUPS, _THREADS),
        new_barriers(_GROUPS * _GROUPS, 1),
        new_barriers(_GROUPS, 1),
        new_barriers(_GROUPS, 1),
        new_barriers(_GROUPS, 1),
    )
    copy_queries(q, slots, plan)
    fence_async_shared()
    synchronize()
    gl.warp_specialize(
        [
            (_attend_0, (indices, sinks, out, lse, slots, signals, plan, layouts)),
            (_attend_1, (indices, sinks, out, lse, slots, signals, plan, layouts)),
            (gather_in_turns, (kv, indices, slots, signals, plan)),
        ],
        [_WARPS, _WARPS],
        [_MULTIPLYING, _GATHERING],
    )


@gluon.jit
def _attend_0(indices, sinks, out, lse, slots, signals, plan: gl.constexpr, layouts: gl.constexpr):
    attend_in_turns(0, indices, sinks, out, lse, slots, signals, plan, layouts)


@gluon.jit
def _attend_1(indices, sinks, out, lse, slots, signals, plan: gl.constexpr, layouts: gl.constexpr):
    attend_in_turns(1, indices, sinks, out, lse, slots, signals, plan, layouts)
