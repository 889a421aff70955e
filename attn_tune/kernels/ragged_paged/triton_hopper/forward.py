"""The launches of a ragged call on Hopper: decoding for the first sequences, and tiles of queries for all others.

The second is FlashAttention-3 (arXiv 2407.08608) in Gluon over a cache in pages. One program a multiprocessor takes
tiles from a queue: queries of one sequence and of all heads that share keys. One of its warps finds out which queries
these are and copies by descriptor (TMA), queries, then keys and values page by page. Groups of four warps own 64 rows
each and do everything else. They wait for tiles, never for each other, so that one's softmax runs beside the other's
products. All that passes between them is in slots of shared memory (``partitions.Buffers``), each guarded by two
barriers (``partitions.Barriers``): ``full`` is completed by the bytes that arrive, ``empty`` by all groups that have
read the slot. Slot and phase of step ``n`` over tiles of keys are ``n % stages`` and ``n // stages % 2``. A wait for an
empty slot starts with the phase before, so that the first pass over the slots does not wait.

Of a cache of codes one tile of keys and one of values are copied into slots of their own. Four more warps widen them to
16-bit numbers into the slots of keys and values (``widening``), and queries become float16 as codes do (``queries``).
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

from attn_tune.kernels.lang.gluon.device import product_layout
from attn_tune.kernels.lang.gluon.names import new_barriers, viewed
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.ragged_paged._triton.decoding import decode, decoding_sequences
from attn_tune.kernels.ragged_paged.triton_hopper.config import ROWS, WARPS, WIDENING_REGISTERS, Config
from attn_tune.kernels.ragged_paged.triton_hopper.partitions import Barriers, Buffers, attend, copy_tiles
from attn_tune.kernels.ragged_paged.triton_hopper.plan import plan_of
from attn_tune.kernels.ragged_paged.triton_hopper.queries import as_float16
from attn_tune.kernels.ragged_paged.triton_hopper.tiles import FACTS, TILE_SLOTS
from attn_tune.kernels.ragged_paged.triton_hopper.widening import widen_tiles
from attn_tune.ops.ragged_paged.operands import Operands
from attn_tune.ops.ragged_paged.problem import Problem

_WARPS = gl.constexpr(WARPS)
_ROWS = gl.constexpr(ROWS)
_TILE_SLOTS = gl.constexpr(TILE_SLOTS)
_FACTS = gl.constexpr(FACTS)
_WITHOUT = gl.constexpr(None)


@dataclass(frozen=True)
class Layouts:
    """The layouts of tiles in registers.

    Logits as they come out of the first product, weights and output as they go into and come out of the second.
    """

    logits: Any
    weights: Any
    out: Any


@dataclass(frozen=True)
class Workers:
    """Warps, and registers of a thread, of each partition but the first, which has the warps of the launch."""

    warps: tuple[int, ...]
    registers: tuple[int, ...]


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
        o.k_scale,
        o.v_scale,
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
            "workers": _workers(plan.has_codes, config),
        },
        num_warps=WARPS,
        name="ragged_paged_hopper",
    )
    return {"out": out, "lse": lse}


def _layouts(width: int, config: Config) -> Layouts:
    out = product_layout(width)
    weights = gl.DotOperandLayout(operand_index=0, parent=out, k_width=2)
    return Layouts(logits=product_layout(config.block_k), weights=weights, out=out)


def _workers(has_codes: bool, config: Config) -> Workers:
    """The partitions in the order in which ``forward_kernel`` names them."""
    multiplying = (config.multiplying_registers(has_codes=has_codes),) * (config.consumers - 1)
    groups = (WARPS,) * (config.consumers - 1)
    if has_codes:
        return Workers((1, WARPS, *groups), (config.copying_registers, WIDENING_REGISTERS, *multiplying))
    return Workers((*groups, 1), (*multiplying, config.copying_registers))


@gluon.jit
def forward_kernel(
    q,
    k,
    v,
    page_table,
    kv_lens,
    cu_q_lens,
    sinks,
    k_scale,
    v_scale,
    decodes,
    decoded,
    decoded_lse,
    out,
    lse,
    counter,
    plan: gl.constexpr,
    layouts: gl.constexpr,
    workers: gl.constexpr,
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
    cached: gl.constexpr = k.dtype.element_ty
    k_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([plan.chunk, 1, plan.k_panel], cached)
    k_desc = tma.make_tensor_descriptor(
        k, [plan.cache_rows, CACHED, H], [CACHED * H, H, 1], [plan.chunk, 1, plan.k_panel], k_layout
    )
    v_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([plan.chunk, 1, plan.v_panel], cached)
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
    k_panel_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([plan.block_k, plan.k_panel], dtype)
    v_panel_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([plan.block_k, plan.v_panel], dtype)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    queries = gl.allocate_shared_memory(dtype, [Q_TILES, _ROWS, plan.block_h], rows_layout)
    wide: gl.constexpr = gl.float16 if plan.has_factors else dtype
    keys = gl.allocate_shared_memory(wide, [STAGES, plan.block_k, plan.block_h], keys_layout)
    values = gl.allocate_shared_memory(wide, [STAGES, plan.block_k, plan.block_v], values_layout)
    q_copies: gl.constexpr = [Q_TILES * plan.k_panels, QUERIES, GROUP, plan.k_panel]
    out_tiles: gl.constexpr = [SLOTS * plan.out_stride, _ROWS, plan.block_v]
    k_panels: gl.constexpr = [K_PANELS, plan.block_k, plan.k_panel]
    v_panels: gl.constexpr = [V_PANELS, plan.block_k, plan.v_panel]
    # Of codes one tile, in panels of as many columns as those of what they become.
    COPIED: gl.constexpr = 1 if plan.has_codes else STAGES
    k_copies: gl.constexpr = [COPIED * plan.k_panels * plan.chunks, plan.chunk, 1, plan.k_panel]
    v_copies: gl.constexpr = [COPIED * plan.v_panels * plan.chunks, plan.chunk, 1, plan.v_panel]
    k_copied = keys
    v_copied = values
    k_codes = _WITHOUT
    v_codes = _WITHOUT
    if plan.has_codes:
        k_codes_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([plan.block_k, plan.k_panel], cached)
        v_codes_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([plan.block_k, plan.v_panel], cached)
        k_codes = gl.allocate_shared_memory(cached, [plan.k_panels, plan.block_k, plan.k_panel], k_codes_layout)
        v_codes = gl.allocate_shared_memory(cached, [plan.v_panels, plan.block_k, plan.v_panel], v_codes_layout)
        k_copied = k_codes
        v_copied = v_codes
    k_scales = k_scale
    v_scales = v_scale
    if plan.kv_scale == "token":
        k_scales = gl.allocate_shared_memory(gl.float32, [STAGES, plan.block_k], plain)
        v_scales = gl.allocate_shared_memory(gl.float32, [STAGES, plan.block_k], plain)
    buffers = Buffers(
        queries,
        viewed(queries, q_copies, q_layout),
        as_float16(queries) if plan.has_factors else _WITHOUT,
        viewed(queries, out_tiles, out_layout),
        keys,
        values,
        viewed(k_copied, k_copies, k_layout),
        viewed(v_copied, v_copies, v_layout),
        viewed(keys, k_panels, k_panel_layout),
        viewed(values, v_panels, v_panel_layout),
        k_codes,
        v_codes,
        k_scales,
        v_scales,
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
        new_barriers(_TILE_SLOTS, plan.consumers + plan.has_codes),
        new_barriers(1, 1) if plan.has_codes else _WITHOUT,
        new_barriers(1, 1) if plan.has_codes else _WITHOUT,
        new_barriers(1, 1) if plan.has_codes else _WITHOUT,
        new_barriers(1, 1) if plan.has_codes else _WITHOUT,
    )
    descriptors = (q_desc, k_desc, v_desc)
    sources = (page_table, kv_lens, cu_q_lens, decodes, counter)
    pointers = (cu_q_lens, sinks, decodes, decoded, decoded_lse, out, lse)
    cells = (page_table, k_scale, v_scale)
    if plan.has_codes:
        gl.warp_specialize(
            (
                (_attend_0, (pointers, buffers, barriers, plan, layouts)),
                (copy_tiles, (descriptors, sources, buffers, barriers, plan)),
                (widen_tiles, (cells, buffers, barriers, plan)),
                (_attend_1, (pointers, buffers, barriers, plan, layouts)),
                (_attend_2, (pointers, buffers, barriers, plan, layouts)),
            )[: plan.consumers + 2],
            workers.warps,
            workers.registers,
        )
    elif plan.consumers == 1:
        gl.warp_specialize(
            [
                (_attend_0, (pointers, buffers, barriers, plan, layouts)),
                (copy_tiles, (descriptors, sources, buffers, barriers, plan)),
            ],
            workers.warps,
            workers.registers,
        )
    elif plan.consumers == 2:
        gl.warp_specialize(
            [
                (_attend_0, (pointers, buffers, barriers, plan, layouts)),
                (_attend_1, (pointers, buffers, barriers, plan, layouts)),
                (copy_tiles, (descriptors, sources, buffers, barriers, plan)),
            ],
            workers.warps,
            workers.registers,
        )
    else:
        gl.warp_specialize(
            [
                (_attend_0, (pointers, buffers, barriers, plan, layouts)),
                (_attend_1, (pointers, buffers, barriers, plan, layouts)),
                (_attend_2, (pointers, buffers, barriers, plan, layouts)),
                (copy_tiles, (descriptors, sources, buffers, barriers, plan)),
            ],
            workers.warps,
            workers.registers,
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
