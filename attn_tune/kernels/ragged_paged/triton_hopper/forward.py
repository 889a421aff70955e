"""The launches of a ragged call on Hopper: decoding for the first sequences, and tiles of queries for all others.

The second is FlashAttention-3 (arXiv 2407.08608) in Gluon over a cache in pages. One program a multiprocessor takes
tiles from a queue: queries of one sequence and of all heads that share keys. One of its warps finds out which queries
these are and copies by descriptor (TMA), queries, then keys and values page by page. Groups of four warps own 64 rows
each and do everything else. They wait for tiles, never for each other, so that one's softmax runs beside the other's
products. All that passes between them is in slots of shared memory (``partitions.Buffers``), each guarded by two
barriers (``partitions.Barriers``): ``full`` is completed by the bytes that arrive, ``empty`` by all groups that have
read the slot. Slot and phase of step ``n`` over tiles of keys are ``n % stages`` and ``n // stages % 2``. A wait for an
empty slot starts with the phase before, so that the first pass over the slots does not wait.
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
from attn_tune.kernels.ragged_paged._triton.decoding import decode, decoding_sequences
from attn_tune.kernels.ragged_paged.triton_hopper.config import ROWS, WARPS, Config
from attn_tune.kernels.ragged_paged.triton_hopper.partitions import Barriers, Buffers, attend, copy_tiles
from attn_tune.kernels.ragged_paged.triton_hopper.plan import plan_of
from attn_tune.kernels.ragged_paged.triton_hopper.tiles import FACTS, TILE_SLOTS
from attn_tune.ops.ragged_paged.operands import Operands
from attn_tune.ops.ragged_paged.problem import Problem

_WARPS = gl.constexpr(WARPS)
_ROWS = gl.constexpr(ROWS)
_TILE_SLOTS = gl.constexpr(TILE_SLOTS)
_FACTS = gl.constexpr(FACTS)


@dataclass(frozen=True)
class Layouts:
    """The layouts of tiles in registers.

    Logits as they come out of the first product, weights and output as they go into and come out of the second.
    """

    logits: Any
    weights: Any
    out: Any


@dataclass(frozen=True)
class Registers:
    """Registers a thread of the warps that multiply and of the one that copies."""

    multiplying: int
    copying: int


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [tokens, N, V] in q's dtype and ``lse`` [tokens, N] in float32."""
    o = operands
    plan = plan_of(problem, config, o)
    decoded, decoded_lse = decode(problem, config, o)
    decodes = None if decoded is None else jnp.sum(decoding_sequences(o), dtype=jnp.int32).reshape(1)
    out, lse, _ = triton_call(
        forward_kernel,
        o.q,
        o.k,
        o.v,
        o.page_table,
        o.kv_lens,
        o.cu_q_lens,
        o.sinks,
        decodes,
        decoded,
        decoded_lse,
        out_types=[
            jax.ShapeDtypeStruct((*o.q.shape[:2], plan.v_head_dim), o.q.dtype),
            jax.ShapeDtypeStruct(o.q.shape[:2], jnp.float32),
            jax.ShapeDtypeStruct((1,), jnp.int32),
        ],
        # The counter of the queue of tiles.
        zeroed=(False, False, True),
        grid=(plan.num_programs, 1, 1),
        constexprs={
            "plan": plan,
            "layouts": _layouts(plan.block_v, config),
            "registers": Registers(config.multiplying_registers, config.copying_registers),
        },
        num_warps=WARPS,
        name="ragged_paged_hopper",
    )
    return {"out": out, "lse": lse}


def _layouts(width: int, config: Config) -> Layouts:
    def product(width: int) -> gl.NVMMADistributedLayout:
        return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, width, 16])

    out = product(width)
    weights = gl.DotOperandLayout(operand_index=0, parent=out, k_width=2)
    return Layouts(logits=product(config.block_k), weights=weights, out=out)


@gluon.jit
def forward_kernel(
    q,
    k,
    v,
    page_table,
    kv_lens,
    cu_q_lens,
    sinks,
    decodes,
    decoded,
    decoded_lse,
    out,
    lse,
    counter,
    plan: gl.constexpr,
    layouts: gl.constexpr,
    registers: gl.constexpr,
):
    """One program a multiprocessor."""
    dtype: gl.constexpr = q.dtype.element_ty
    if v is None:
        v = k
    # A group of warps has some queries, or some heads of one.
    GROUP: gl.constexpr = min(plan.group_rows, _ROWS)
    QUERIES: gl.constexpr = _ROWS // GROUP
    HEADS: gl.constexpr = plan.num_q_heads
    H: gl.constexpr = plan.head_dim
    V: gl.constexpr = plan.v_head_dim
    CACHED: gl.constexpr = plan.cache_heads
    q_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([QUERIES, GROUP, plan.k_panel], dtype)
    q_desc = tma.make_tensor_descriptor(
        q, [plan.tokens, HEADS, H], [HEADS * H, H, 1], [QUERIES, GROUP, plan.k_panel], q_layout
    )
    # What is behind a head's width or the cache's end is read as zeros.
    k_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([plan.chunk, 1, plan.k_panel], dtype)
    k_desc = tma.make_tensor_descriptor(
        k, [plan.cache_rows, CACHED, H], [CACHED * H, H, 1], [plan.chunk, 1, plan.k_panel], k_layout
    )
    v_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([plan.chunk, 1, plan.v_panel], dtype)
    v_desc = tma.make_tensor_descriptor(
        v, [plan.cache_rows, CACHED, V], [CACHED * V, V, 1], [plan.chunk, 1, plan.v_panel], v_layout
    )

    # A slot of queries is as wide as the wider of queries and output.
    SLOTS: gl.constexpr = plan.consumers * plan.q_slots
    STAGES: gl.constexpr = plan.stages
    Q_TILES: gl.constexpr = SLOTS * plan.q_stride
    K_PANELS: gl.constexpr = STAGES * plan.k_panels
    V_PANELS: gl.constexpr = STAGES * plan.v_panels
    rows_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_ROWS, plan.block_h], dtype)
    out_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([_ROWS, plan.block_v], dtype)
    keys_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([plan.block_k, plan.block_h], dtype)
    values_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([plan.block_k, plan.block_v], dtype)
    panel_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([plan.block_k, plan.v_panel], dtype)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    queries = gl.allocate_shared_memory(dtype, [Q_TILES, _ROWS, plan.block_h], rows_layout)
    keys = gl.allocate_shared_memory(dtype, [STAGES, plan.block_k, plan.block_h], keys_layout)
    values = gl.allocate_shared_memory(dtype, [STAGES, plan.block_k, plan.block_v], values_layout)
    q_copies: gl.constexpr = [Q_TILES * plan.k_panels, QUERIES, GROUP, plan.k_panel]
    out_tiles: gl.constexpr = [SLOTS * plan.out_stride, _ROWS, plan.block_v]
    k_copies: gl.constexpr = [K_PANELS * plan.chunks, plan.chunk, 1, plan.k_panel]
    v_copies: gl.constexpr = [V_PANELS * plan.chunks, plan.chunk, 1, plan.v_panel]
    v_panels: gl.constexpr = [V_PANELS, plan.block_k, plan.v_panel]
    buffers = Buffers(
        queries,
        viewed(queries, q_copies, q_layout),
        viewed(queries, out_tiles, out_layout),
        keys,
        values,
        viewed(keys, k_copies, k_layout),
        viewed(values, v_copies, v_layout),
        viewed(values, v_panels, panel_layout),
        gl.allocate_shared_memory(gl.int32, [_TILE_SLOTS * _FACTS, 1], plain),
    )
    barriers = Barriers(
        new_barriers(SLOTS, 1),
        new_barriers(SLOTS, 1),
        new_barriers(STAGES, 1),
        new_barriers(STAGES, plan.consumers),
        new_barriers(STAGES, 1),
        new_barriers(STAGES, plan.consumers),
        new_barriers(plan.consumers, 1),
        new_barriers(_TILE_SLOTS, 1),
        new_barriers(_TILE_SLOTS, plan.consumers),
    )
    descriptors = (q_desc, k_desc, v_desc)
    sources = (page_table, kv_lens, cu_q_lens, decodes, counter)
    pointers = (cu_q_lens, sinks, decodes, decoded, decoded_lse, out, lse)
    MULTIPLYING: gl.constexpr = registers.multiplying
    COPYING: gl.constexpr = registers.copying
    if plan.consumers == 1:
        gl.warp_specialize(
            [
                (_attend_0, (pointers, buffers, barriers, plan, layouts)),
                (copy_tiles, (descriptors, sources, buffers, barriers, plan)),
            ],
            [1],
            [COPYING],
        )
    elif plan.consumers == 2:
        gl.warp_specialize(
            [
                (_attend_0, (pointers, buffers, barriers, plan, layouts)),
                (_attend_1, (pointers, buffers, barriers, plan, layouts)),
                (copy_tiles, (descriptors, sources, buffers, barriers, plan)),
            ],
            [_WARPS, 1],
            [MULTIPLYING, COPYING],
        )
    else:
        gl.warp_specialize(
            [
                (_attend_0, (pointers, buffers, barriers, plan, layouts)),
                (_attend_1, (pointers, buffers, barriers, plan, layouts)),
                (_attend_2, (pointers, buffers, barriers, plan, layouts)),
                (copy_tiles, (descriptors, sources, buffers, barriers, plan)),
            ],
            [_WARPS, _WARPS, 1],
            [MULTIPLYING, MULTIPLYING, COPYING],
        )


@gluon.jit
def _attend_0(pointers, buffers, barriers, plan: gl.constexpr, layouts: gl.constexpr):
    attend(0, pointers, buffers, barriers, plan, layouts)


@gluon.jit
def _attend_1(pointers, buffers, barriers, plan: gl.constexpr, layouts: gl.constexpr):
    attend(1, pointers, buffers, barriers, plan, layouts)


@gluon.jit
def _attend_2(pointers, buffers, barriers, plan: gl.constexpr, layouts: gl.constexpr):
    attend(2, pointers, buffers, barriers, plan, layouts)
