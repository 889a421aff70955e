"""The forward on Hopper: one walk over the chunks of each sequence, or of segments of it (``walk``)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from attn_tune.kernels.lang.gluon.chunks import CHUNK, COLUMNS, WARPS, Plan
from attn_tune.kernels.lang.gluon.chunks.states import layouts_of
from attn_tune.kernels.lang.slots import over_slots
from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.kernels.lang.triton.linear.config import ForwardConfig
from attn_tune.kernels.lang.triton.linear.decays import chunk_decays
from attn_tune.kernels.lang.triton.linear.static import static_of
from attn_tune.kernels.linear_attention.triton_hopper.config import Config
from attn_tune.kernels.linear_attention.triton_hopper.launch import scan_kernel, segments_kernel
from attn_tune.ops.linear_attention.problem import Problem


@over_slots
def forward(problem: Problem, config: Config, operands: Any) -> dict[str, jax.Array]:
    """``out`` [R, T, N, V], and the final states ``state`` [B, N, H, V] if the problem has them."""
    o = operands
    columns = COLUMNS * config.groups
    walk = ForwardConfig(chunk=CHUNK, block_v=columns, num_warps=WARPS, num_stages=config.num_stages)
    static = static_of(problem, walk, columns, config.segments)
    plan = Plan(
        stages=config.num_stages,
        groups=config.groups,
        tokens=o.q.shape[0] * o.q.shape[1],
        places=static.slots * static.heads,
    )
    decays = chunk_decays(o, static)
    states = (static.heads, static.width, static.v_width)
    constants = {"static": static, "layouts": layouts_of(static.width)}
    added, kept = None, None
    if config.segments > 1:
        before = (static.batch, static.segments - 1)
        added, kept = triton_call(
            segments_kernel,
            o.k,
            o.v,
            decays,
            o.cu_seqlens,
            out_types=[
                jax.ShapeDtypeStruct((*before, *states), jnp.float32),
                jax.ShapeDtypeStruct((*before, static.heads), jnp.float32),
            ],
            grid=(static.tiles * static.heads * (static.segments - 1) * static.batch, 1, 1),
            constexprs=constants | {"plan": dataclasses.replace(plan, has_outputs=False)},
            num_warps=WARPS,
            name="linear_attention_segments_hopper",
        )
    out, state = triton_call(
        scan_kernel,
        o.q,
        o.k,
        o.v,
        decays,
        o.cu_seqlens,
        o.initial_state,
        added,
        kept,
        out_types=[
            jax.ShapeDtypeStruct(o.v.shape, o.v.dtype),
            jax.ShapeDtypeStruct((static.batch, *states), jnp.float32),
        ],
        grid=(static.tiles * static.heads * static.parts * static.segments, 1, 1),
        constexprs=constants | {"plan": plan},
        num_warps=WARPS,
        name="linear_attention_scan_hopper",
    )
    return {"out": out, "state": state} if problem.has_final_state else {"out": out}
