"""The launch that walks latents on Hopper, in Gluon.

One warp of a program copies queries and pages of the cache by descriptor (TMA) into slots of shared memory. Two groups
of four warps attend to them in turns (``lang.gluon.latents``). Parts of cut sequences go to ``combine``
(Flash-Decoding).
"""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportAssignmentType=false, reportGeneralTypeIssues=false

import jax
import jax.numpy as jnp
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from attn_tune.kernels.lang.gluon.latents import GROUPS, KEYS, PANEL, ROWS, WARPS
from attn_tune.kernels.lang.gluon.latents.slots import layouts_of, new_buffers, new_signals
from attn_tune.kernels.lang.gluon.names import new_barriers
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.paged_decode._triton.combine import combine
from attn_tune.kernels.paged_decode._triton.config import Config as Tile
from attn_tune.kernels.paged_decode._triton.static import static_of
from attn_tune.kernels.paged_decode.triton_hopper.config import Config
from attn_tune.kernels.paged_decode.triton_hopper.copying import copy_tiles
from attn_tune.kernels.paged_decode.triton_hopper.plan import plan_of
from attn_tune.kernels.paged_decode.triton_hopper.walk import attend, first_work
from attn_tune.ops.paged_decode.operands import Operands
from attn_tune.ops.paged_decode.problem import Problem

_WARPS = gl.constexpr(WARPS)
_GROUPS = gl.constexpr(GROUPS)
_ROWS = gl.constexpr(ROWS)
_PANEL = gl.constexpr(PANEL)
# Registers a thread: the groups need 128 for the output, 48 for logits and weights; a program has 64 K.
_MULTIPLYING, _COPYING = gl.constexpr(240), gl.constexpr(24)


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
        constexprs={"static": static, "plan": plan, "layouts": layouts_of(plan.half)},
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
    # What is behind a row's width or the array's end is read as zeros.
    q_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_ROWS, _PANEL], dtype)
    q_desc = tma.make_tensor_descriptor(q, [plan.queries, H], [H, 1], [_ROWS, _PANEL], q_layout)
    k_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([plan.chunk, _PANEL], dtype)
    k_desc = tma.make_tensor_descriptor(k, [plan.cache_rows, H], [H, 1], [plan.chunk, _PANEL], k_layout)

    buffers = new_buffers(dtype, plan)
    barriers = new_signals(1, plan)
    queries = (new_barriers(1, 1), new_barriers(1, _GROUPS))
    work = first_work(kv_lens, static)
    outputs = (out, lse, part_out, part_lse)
    gl.warp_specialize(
        [
            (_attend_0, (work, kv_lens, sinks, outputs, buffers, barriers, queries, static, plan, layouts)),
            (_attend_1, (work, kv_lens, sinks, outputs, buffers, barriers, queries, static, plan, layouts)),
            (copy_tiles, (work, kv_lens, page_table, q_desc, k_desc, buffers, barriers, queries, static, plan)),
        ],
        [_WARPS, 1],
        [_MULTIPLYING, _COPYING],
    )


@gluon.jit
def _attend_0(
    work,
    kv_lens,
    sinks,
    outputs,
    buffers,
    barriers,
    queries,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    attend(0, work, kv_lens, sinks, outputs, buffers, barriers, queries, static, plan, layouts)


@gluon.jit
def _attend_1(
    work,
    kv_lens,
    sinks,
    outputs,
    buffers,
    barriers,
    queries,
    static: gl.constexpr,
    plan: gl.constexpr,
    layouts: gl.constexpr,
):
    attend(1, work, kv_lens, sinks, outputs, buffers, barriers, queries, static, plan, layouts)
