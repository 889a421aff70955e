"""The fused backward for Hopper: FlashAttention-2's algorithm 2 (arXiv 2307.08691) in Gluon.

One program a multiprocessor takes tiles of 128 keys from a queue, the longest first, and walks the rows of every query
head that shares them. One of its warps copies by descriptor (TMA), two groups of four warps own 64 keys each. Logits
and the gradient of the weights are computed transposed, so that weights and their gradient go into dv and dk from
registers. The gradient of the logits goes to shared memory too, once, where both groups read it: each makes half of
what the tile of keys adds to dq, in float32, and adds it to the sums in device memory. All that passes between the
warps is in slots of shared memory (``partitions.Buffers``), each guarded by barriers (``partitions.Barriers``)::

    copying warp (copy_tiles)     slots                          group 0 and group 1 (differentiate)
    -------------------------     ---------------------------    ------------------------------------------------
    publish_place           --->  place and bounds [2]     --->  receive_place
    _load_keys        (TMA) --->  k       [2 x 64 keys]    --->  k.q of its own, ds.k of all
                      (TMA) --->  v       [2 x 64 keys]    --->  v.dout of its own; at the end dv, then dk leave there
    _load_rows        (TMA) --->  q, lse, segments [stages] -->  k.q, ds.q
                      (TMA) --->  dout, delta [dout_stages] -->  v.dout, p.dout
                                  ds      [2 x 2]          <-->  each writes that of its keys, both read all: ds.k
                                  dq      [2]              <---  add_share: each its half, added from there by TMA

    barrier               arrives                                waits            arrivals
    place_full[2]         copying warp                           both groups      1
    place_empty[2]        each group, has read it                copying warp     2
    k_full, v_full        TMA, by bytes                          both groups      1
    k_empty               each group, its last ds.k is done      copying warp     2
    v_empty               each group, its dk has left            copying warp     2
    q_full[stages]        TMA, by bytes                          both groups      1
    q_empty[stages]       each group, its ds.q is done           copying warp     2
    dout_full[dout_stages]     TMA, by bytes                          both groups      1
    dout_empty[dout_stages]    each group, its p.dout is done         copying warp     2
    ds_full[2]            each group, its keys are written       both groups      2

Slot and phase of step ``n`` are ``n % slots`` and ``n // slots % 2``. A wait for an empty slot starts with the phase
before, so that the first pass over the slots does not wait.
A slot of ds needs no barrier that it is empty: a group that has seen a step's ``ds_full`` knows that the other one is
done with the step before, which is that of the other slot.
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from attn_tune.kernels.flash_attention.triton_hopper_fused.config import CONSUMERS, ROWS, WARPS, BackwardConfig
from attn_tune.kernels.flash_attention.triton_hopper_fused.partitions import (
    Barriers,
    Buffers,
    copy_tiles,
    differentiate,
)
from attn_tune.kernels.flash_attention.triton_hopper_fused.plan import (
    DS_SLOTS,
    PLACE_SLOTS,
    plan_of,
    rows,
    width,
)
from attn_tune.kernels.lang.gluon.attention.launch import describe
from attn_tune.kernels.lang.gluon.device import product_layout
from attn_tune.kernels.lang.gluon.names import new_barriers, viewed
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.device.ranges import row_ranges
from attn_tune.kernels.lang.triton.device.static import LOG2E, static_of
from attn_tune.ops.flash_attention.operands import BackwardInputs
from attn_tune.ops.flash_attention.problem import Problem

# Of 168 registers a thread that a block of 12 warps starts with, the warps that copy give most to those that multiply.
MULTIPLYING_REGISTERS, COPYING_REGISTERS = 240, 24
_MULTIPLYING = gl.constexpr(MULTIPLYING_REGISTERS)
_COPYING = gl.constexpr(COPYING_REGISTERS)
_WARPS = gl.constexpr(WARPS)
_ROWS = gl.constexpr(ROWS)
_CONSUMERS = gl.constexpr(CONSUMERS)
_DS_SLOTS = gl.constexpr(DS_SLOTS)
_PLACE_SLOTS = gl.constexpr(PLACE_SLOTS)


@dataclass(frozen=True)
class Layouts:
    """The layouts of tiles in registers.

    Transposed logits as they come out of a product, their weights and gradients as they go into the next, dk and dv,
    and a share of dq.
    """

    logits: Any
    operand: Any
    keys: Any
    share: Any


def backward(problem: Problem, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, jax.Array]:
    """``dq``, ``dk`` and ``dv``, each like its primal."""
    o, masked = inputs.operands, problem
    if problem.has_lengths:
        # They say all that the segments say, and need no comparing.
        masked = dataclasses.replace(problem, has_segments=False, has_lengths=False)
        o = o._replace(q_segments=None, kv_segments=None)
    static = static_of(masked, config, ranges=True)
    plan = plan_of(problem, config, static)
    # Whole tiles, and an lse that makes every weight 0 beyond the end and for rows that see nothing.
    behind = ((0, 0), (0, 0), (0, plan.padded_q - problem.q_len))
    lse = jnp.where(inputs.residuals.lse == -jnp.inf, jnp.inf, inputs.residuals.lse * LOG2E)
    delta = inputs.delta
    if problem.dropout_rate > 0:
        # Dropout's scale multiplies gradients at the end, not every weight.
        delta /= static.keep_scale
    sums, dk, dv, _ = triton_call(
        backward_kernel,
        o.q,
        o.k,
        o.v,
        inputs.dout,
        jnp.pad(lse, behind, constant_values=jnp.inf),
        jnp.pad(delta, behind),
        row_ranges(o.q_segments, o.kv_segments, static),
        o.kv_lengths,
        None if o.q_segments is None else jnp.pad(o.q_segments, behind[1:]),
        o.kv_segments,
        o.dropout,
        # A kernel of XLA's, which timers of kernels see; they see no memory that the launcher sets to zero.
        jnp.zeros(o.q.shape, jnp.float32),
        out_types=[
            jax.ShapeDtypeStruct(o.q.shape, jnp.float32),
            jax.ShapeDtypeStruct(o.k.shape, o.k.dtype),
            jax.ShapeDtypeStruct(o.v.shape, o.v.dtype),
            jax.ShapeDtypeStruct((1,), jnp.int32),
        ],
        # The counter of the queue of tiles.
        zeroed=(False, False, False, True),
        input_output_aliases={11: 0},
        grid=(plan.num_programs, 1, 1),
        constexprs={
            "plan": plan,
            "static": static,
            "layouts": _layouts(problem, config),
        },
        num_warps=WARPS,
        name="flash_attention_bwd_hopper",
    )
    # Scaled once, here, and not at every addition.
    return {"dq": (sums * (problem.scale * static.keep_scale)).astype(o.q.dtype), "dk": dk, "dv": dv}


def _layouts(problem: Problem, config: BackwardConfig) -> Layouts:
    keys = product_layout(width(problem, config))
    return Layouts(
        logits=product_layout(rows(config)),
        operand=gl.DotOperandLayout(operand_index=0, parent=keys, k_width=2),
        keys=keys,
        share=product_layout(ROWS),
    )


@gluon.jit
def backward_kernel(
    q,
    k,
    v,
    dout,
    lse,
    delta,
    ranges,
    lengths,
    q_segments,
    kv_segments,
    dropout,
    zeros,
    dq,
    dk,
    dv,
    counter,
    plan: gl.constexpr,
    static: gl.constexpr,
    layouts: gl.constexpr,
):
    """One program a multiprocessor; ``dq`` starts as ``zeros``, in one buffer."""
    dtype: gl.constexpr = q.dtype.element_ty
    H: gl.constexpr = static.head_dim
    q_shape: gl.constexpr = [1, plan.rows, H]
    k_shape: gl.constexpr = [1, _ROWS, H]
    out_shape: gl.constexpr = [1, _ROWS, plan.width]
    dq_shape: gl.constexpr = [1, _ROWS, _ROWS]
    q_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(q_shape, dtype)
    k_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(k_shape, dtype)
    out_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(out_shape, dtype)
    dq_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(dq_shape, gl.float32)
    q_desc = describe(q, static.q_len, static.num_q_heads, q_shape, q_layout, plan, static)
    dout_desc = describe(dout, static.q_len, static.num_q_heads, q_shape, q_layout, plan, static)
    k_desc = describe(k, static.kv_len, static.num_kv_heads, k_shape, k_layout, plan, static)
    v_desc = describe(v, static.kv_len, static.num_kv_heads, k_shape, k_layout, plan, static)
    dk_desc = describe(dk, static.kv_len, static.num_kv_heads, out_shape, out_layout, plan, static)
    dv_desc = describe(dv, static.kv_len, static.num_kv_heads, out_shape, out_layout, plan, static)
    rows: gl.constexpr = plan.batch * static.num_q_heads
    row_shape: gl.constexpr = [1, plan.rows]
    row_layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    lse_desc = tma.make_tensor_descriptor(lse, [rows, plan.padded_q], [plan.padded_q, 1], row_shape, row_layout)
    delta_desc = tma.make_tensor_descriptor(delta, [rows, plan.padded_q], [plan.padded_q, 1], row_shape, row_layout)
    segments_desc = lse_desc
    if static.has_segments:
        segments_desc = tma.make_tensor_descriptor(
            q_segments, [plan.batch, plan.padded_q], [plan.padded_q, 1], row_shape, row_layout
        )
    dq_desc = describe(dq, static.q_len, static.num_q_heads, dq_shape, dq_layout, plan, static)
    STAGES: gl.constexpr = plan.stages
    DOUT_STAGES: gl.constexpr = plan.dout_stages
    TILES: gl.constexpr = STAGES * plan.row_tiles
    DOUT_TILES: gl.constexpr = DOUT_STAGES * plan.row_tiles
    k_buffer = gl.allocate_shared_memory(dtype, [plan.key_tiles, 1, _ROWS, H], k_layout)
    v_buffer = gl.allocate_shared_memory(dtype, [plan.key_tiles, 1, _ROWS, H], k_layout)
    q_buffer = gl.allocate_shared_memory(dtype, [TILES, 1, plan.rows, H], q_layout)
    dout_buffer = gl.allocate_shared_memory(dtype, [DOUT_TILES, 1, plan.rows, H], q_layout)
    square_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_ROWS, _ROWS], dtype)
    q_panel_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([plan.rows, plan.width], dtype)
    q_panels: gl.constexpr = [TILES * H // plan.width, plan.rows, plan.width]
    dout_panels: gl.constexpr = [DOUT_TILES * H // plan.width, plan.rows, plan.width]
    ds_shape: gl.constexpr = [plan.rows, _ROWS] if plan.shares_keys else [_ROWS, plan.rows]
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(ds_shape, dtype)
    ds_tiles: gl.constexpr = [_DS_SLOTS * _CONSUMERS, ds_shape[0], ds_shape[1]]
    ds_buffer = gl.allocate_shared_memory(dtype, ds_tiles, ds_layout)
    p_buffer = ds_buffer
    if plan.shares_keys:
        p_buffer = gl.allocate_shared_memory(dtype, ds_tiles, ds_layout)
    dq_buffer = k_buffer
    if plan.staged_dq:
        dq_buffer = gl.allocate_shared_memory(gl.float32, [_CONSUMERS, 1, _ROWS, _ROWS], dq_layout)
    lse_buffer = gl.allocate_shared_memory(gl.float32, [TILES, 1, plan.rows], row_layout)
    segments_buffer = lse_buffer
    if static.has_segments:
        segments_buffer = gl.allocate_shared_memory(gl.int32, [TILES, 1, plan.rows], row_layout)
    buffers = Buffers(
        k_buffer,
        v_buffer,
        viewed(k_buffer, [plan.key_tiles * H // _ROWS, _ROWS, _ROWS], square_layout),
        viewed(v_buffer, [_CONSUMERS, 1, _ROWS, plan.width], out_layout),
        q_buffer,
        dout_buffer,
        viewed(q_buffer, q_panels, q_panel_layout),
        viewed(dout_buffer, dout_panels, q_panel_layout),
        lse_buffer,
        segments_buffer,
        gl.allocate_shared_memory(gl.float32, [DOUT_TILES, 1, plan.rows], row_layout),
        p_buffer,
        ds_buffer,
        viewed(ds_buffer, [_DS_SLOTS * _CONSUMERS * plan.rows // _ROWS, _ROWS, _ROWS], square_layout),
        dq_buffer,
        gl.allocate_shared_memory(
            gl.int32, [_PLACE_SLOTS * plan.place_numbers, 1], gl.SwizzledSharedLayout(1, 1, 1, order=[0])
        ),
    )
    barriers = Barriers(
        new_barriers(_PLACE_SLOTS, 1),
        new_barriers(_PLACE_SLOTS, _CONSUMERS),
        new_barriers(1, 1),
        new_barriers(1, _CONSUMERS),
        new_barriers(1, 1),
        new_barriers(1, _CONSUMERS),
        new_barriers(STAGES, 1),
        new_barriers(STAGES, _CONSUMERS),
        new_barriers(DOUT_STAGES, 1),
        new_barriers(DOUT_STAGES, _CONSUMERS),
        new_barriers(_DS_SLOTS, _CONSUMERS),
    )
    outputs = (dk_desc, dv_desc, dq_desc)
    pointers = (kv_segments, dropout, dq)
    gl.warp_specialize(
        [
            (_differentiate_0, (outputs, pointers, buffers, barriers, plan, static, layouts)),
            (_differentiate_1, (outputs, pointers, buffers, barriers, plan, static, layouts)),
            (
                copy_tiles,
                (
                    (k_desc, v_desc, (q_desc, dout_desc, lse_desc, segments_desc, delta_desc)),
                    (ranges, lengths, counter),
                    buffers,
                    barriers,
                    plan,
                    static,
                ),
            ),
        ],
        [_WARPS, 1],
        [_MULTIPLYING, _COPYING],
    )


@gluon.jit
def _differentiate_0(
    descriptors, pointers, buffers, barriers, plan: gl.constexpr, static: gl.constexpr, layouts: gl.constexpr
):
    differentiate(0, descriptors, pointers, buffers, barriers, plan, static, layouts)


@gluon.jit
def _differentiate_1(
    descriptors, pointers, buffers, barriers, plan: gl.constexpr, static: gl.constexpr, layouts: gl.constexpr
):
    differentiate(1, descriptors, pointers, buffers, barriers, plan, static, layouts)
