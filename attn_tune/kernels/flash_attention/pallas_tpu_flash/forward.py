"""The forward over JAX's flash attention for TPU."""

import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import flash_attention as library
from jaxtyping import Array

from attn_tune.kernels.flash_attention.pallas_tpu_flash.arrays import (
    EMPTY_BELOW,
    Arrays,
    prepare,
)
from attn_tune.kernels.flash_attention.pallas_tpu_flash.config import ForwardConfig
from attn_tune.kernels.flash_attention.pallas_tpu_flash.frame import Frame
from attn_tune.kernels.lang.pallas_tpu.precision import precision_of
from attn_tune.kernels.lang.pallas_tpu.rewrite import rewritten
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem


def forward(problem: Problem, config: ForwardConfig, operands: Operands) -> dict[str, Array]:
    """``out`` [B, T, N, V] in the query's dtype and ``lse`` [B, N, T] in float32."""
    p = problem
    frame = Frame(problem=p, block_q=config.block_q, block_k=config.block_k_major)

    def launch(arrays: Arrays) -> tuple[Array, Array, Array]:
        return library._flash_attention_impl(
            *arrays,
            save_residuals=True,
            causal=p.causal,
            sm_scale=p.scale,
            block_b=config.block_b,
            block_q=config.block_q,
            block_k_major=config.block_k_major,
            block_k=config.block_k,
            debug=False,
        )

    with precision_of(p):
        run = rewritten(launch, vmem_limit_kib=config.vmem_limit_kib)
        out, total, largest = run(prepare(frame, operands))
    rows = slice(frame.q_lead, frame.q_lead + p.q_len)
    out, total, largest = out[:, :, rows, : p.v_head_dim], total[:, :, rows], largest[:, :, rows]
    # A row that saw nothing has the mean of all values.
    empty = largest < EMPTY_BELOW
    out = jnp.where(empty[..., None], 0, out)
    lse = jnp.where(empty, -jnp.inf, largest + jnp.log(total))
    if operands.sinks is not None:
        out, lse = _with_sinks(out, lse, operands.sinks)
    return {"out": out.swapaxes(1, 2).astype(operands.q.dtype), "lse": lse}


def _with_sinks(out: Array, lse: Array, sinks: Array) -> tuple[Array, Array]:
    """A sink only rescales: it joins the denominator and adds nothing to the sum."""
    joined = jnp.logaddexp(lse, sinks.astype(jnp.float32)[None, :, None])
    share = jnp.where(jnp.isneginf(joined), 0.0, jnp.exp(lse - joined))
    return (out.astype(jnp.float32) * share[..., None]).astype(out.dtype), joined
