"""The launch that walks latents on Hopper, in Gluon.

One warp of a program copies queries and pages of the cache by descriptor (TMA) into slots of shared memory. Two groups
of four warps own the same 64 rows of queries, and each half of the output's columns, since an output of 64 rows and 512
columns is 256 registers a thread of one group. Each computes the logits of half of a tile's keys and passes its maxima,
then its weights, to the other through shared memory, so that no logit is computed twice (as FlashMLA's two groups do
with whole tiles in turn). What passes is guarded by barriers: ``full`` is completed by the bytes that arrive or by the
group that wrote, ``empty`` by both groups when they have read a tile. The softmax is that of FlashAttention-2 (arXiv
2307.08691, algorithm 1) in base 2; parts of cut sequences go to ``combine`` (Flash-Decoding).
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from attn_tune.kernels.lang.gluon.names import new_barriers, viewed
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.paged_decode._triton.combine import combine
from attn_tune.kernels.paged_decode._triton.config import Config as Tile
from attn_tune.kernels.paged_decode._triton.static import static_of
from attn_tune.kernels.paged_decode.triton_hopper.config import BLOCK, GROUPS, KEYS, ROWS, WARPS, Config
from attn_tune.kernels.paged_decode.triton_hopper.copying import copy_tiles
from attn_tune.kernels.paged_decode.triton_hopper.plan import PANEL, plan_of
from attn_tune.kernels.paged_decode.triton_hopper.walk import Barriers, Buffers, attend, first_work
from attn_tune.ops.paged_decode.operands import Operands
from attn_tune.ops.paged_decode.problem import Problem

_WARPS = gl.constexpr(WARPS)
_GROUPS = gl.constexpr(GROUPS)
_ROWS = gl.constexpr(ROWS)
_BLOCK = gl.constexpr(BLOCK)
_PANEL = gl.constexpr(PANEL)
# Registers a thread: the groups need 128 for the output, 48 for logits and weights; a program has 64 K.
_MULTIPLYING, _COPYING = gl.constexpr(240), gl.constexpr(24)


@dataclass(frozen=True)
class Layouts:
    """The layouts of tiles in registers: logits, weights as an operand, and a group's half of the output."""

    logits: Any
    weights: Any
    out: Any


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [B, T, N, V] in q's dtype and ``lse`` [B, T, N] in float32."""
    o = operands
    static = static_of(problem, _tile(config), o, ptx=True)
    plan = plan_of(static, config, o.k.size // static.head_dim)
    shape = (static.batch, static.q_len, static.num_q_heads)
    # Only the first and the last sequence of a piece can be cut.
    parts = (2 * config.num_programs, static.tiles, static.block_q)
    out, lse, part_out, part_lse = triton_call(
        walk_kernel,
        o.q,
        o.k,
        o.page_table,
        o.kv_lens,
        o.sinks,
        out_types=[
            jax.ShapeDtypeStruct((*shape, static.v_head_dim), o.q.dtype),
            jax.ShapeDtypeStruct(shape, jnp.float32),
            jax.ShapeDtypeStruct((*parts, static.v_head_dim), jnp.float32),
            jax.ShapeDtypeStruct(parts, jnp.float32),
        ],
        grid=(config.num_programs * static.tiles, 1, 1),
        constexprs={"static": static, "plan": plan, "layouts": _layouts(plan.half)},
        num_warps=WARPS,
        name="paged_decode_hopper",
    )
    out, lse = combine(part_out, part_lse, o.kv_lens, o.sinks, out, lse, static)
    return {"out": out, "lse": lse}


def _tile(config: Config) -> Tile:
    """The same tile and programs as a config of the kernel whose schedule and second launch these are."""
    return Tile(
        block_q=ROWS,
        block_k=KEYS,
        num_warps=WARPS,
        num_stages=config.num_stages,
        num_programs=config.num_programs,
        least_blocks=config.least_blocks,
    )


def _layouts(half: int) -> Layouts:
    def product(width: int) -> gl.NVMMADistributedLayout:
        return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, width, 16])

    out = product(half)
    weights = gl.DotOperandLayout(operand_index=0, parent=out, k_width=2)
    return Layouts(logits=product(BLOCK), weights=weights, out=out)


@gluon.jit
def walk_kernel(
    q,
    k,
    page_table,
    kv_lens,
    sinks,
    out,
    lse,
    part_out,
    part_lse,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    """One program per piece of the line of keys and tile of rows."""
    dtype: gl.constexpr = q.dtype.element_ty
    H: gl.constexpr = static.head_dim
    STAGES: gl.constexpr = plan.stages
    # What is behind a row's width or the array's end is read as zeros.
    q_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_ROWS, _PANEL], dtype)
    q_desc = tma.make_tensor_descriptor(q, [plan.queries, H], [H, 1], [_ROWS, _PANEL], q_layout)
    k_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([plan.chunk, _PANEL], dtype)
    k_desc = tma.make_tensor_descriptor(k, [plan.cache_rows, H], [H, 1], [plan.chunk, _PANEL], k_layout)

    SLOTS: gl.constexpr = STAGES * _GROUPS
    panel_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_BLOCK, _PANEL], dtype)
    q_wide: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_ROWS, plan.width], dtype)
    k_wide: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_BLOCK, plan.width], dtype)
    half_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_BLOCK, plan.half], dtype)
    queries = gl.allocate_shared_memory(dtype, [1, _ROWS, plan.width], q_wide)
    keys = gl.allocate_shared_memory(dtype, [SLOTS, _BLOCK, plan.width], k_wide)
    q_copies: gl.constexpr = [plan.panels, _ROWS, _PANEL]
    k_copies: gl.constexpr = [SLOTS * plan.panels * plan.chunks, plan.chunk, _PANEL]
    halves: gl.constexpr = [SLOTS * _GROUPS, _BLOCK, plan.half]
    v_panels: gl.constexpr = [SLOTS * plan.panels, _BLOCK, _PANEL]
    q_rest = None
    k_rest = None
    k_rest_copies = None
    if plan.rest > 0:
        q_rest = gl.allocate_shared_memory(dtype, [1, _ROWS, _PANEL], q_layout)
        k_rest = gl.allocate_shared_memory(dtype, [SLOTS, _BLOCK, _PANEL], panel_layout)
        rest_copies: gl.constexpr = [SLOTS * plan.chunks, plan.chunk, _PANEL]
        k_rest_copies = viewed(k_rest, rest_copies, k_layout)
    weights_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_ROWS, _BLOCK], dtype)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    buffers = Buffers(
        queries,
        viewed(queries, q_copies, q_layout),
        q_rest,
        keys,
        viewed(keys, k_copies, k_layout),
        viewed(keys, halves, half_layout),
        viewed(keys, v_panels, panel_layout),
        k_rest,
        k_rest_copies,
        gl.allocate_shared_memory(dtype, [_GROUPS, _ROWS, _BLOCK], weights_layout),
        gl.allocate_shared_memory(gl.float32, [_GROUPS, _ROWS], plain),
        gl.allocate_shared_memory(gl.float32, [_GROUPS, _ROWS], plain),
    )
    barriers = Barriers(
        new_barriers(1, 1),
        new_barriers(1, _GROUPS),
        new_barriers(SLOTS, 1),
        new_barriers(STAGES, _GROUPS),
        new_barriers(_GROUPS, 1),
        new_barriers(_GROUPS, 1),
        new_barriers(_GROUPS, 1),
    )
    work = first_work(kv_lens, static)
    outputs = (out, lse, part_out, part_lse)
    gl.warp_specialize(
        [
            (_attend_0, (work, kv_lens, sinks, outputs, buffers, barriers, static, plan, layouts)),
            (_attend_1, (work, kv_lens, sinks, outputs, buffers, barriers, static, plan, layouts)),
            (copy_tiles, (work, kv_lens, page_table, q_desc, k_desc, buffers, barriers, static, plan)),
        ],
        [_WARPS, 1],
        [_MULTIPLYING, _COPYING],
    )


@gluon.jit
def _attend_0(
    work, kv_lens, sinks, outputs, buffers, barriers, static: gl.constexpr, plan: gl.constexpr, layouts: gl.constexpr
):
    attend(0, work, kv_lens, sinks, outputs, buffers, barriers, static, plan, layouts)


@gluon.jit
def _attend_1(
    work, kv_lens, sinks, outputs, buffers, barriers, static: gl.constexpr, plan: gl.constexpr, layouts: gl.constexpr
):
    attend(1, work, kv_lens, sinks, outputs, buffers, barriers, static, plan, layouts)
