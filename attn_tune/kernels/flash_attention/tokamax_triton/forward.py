"""The forward over tokamax's Pallas-Triton attention."""

import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array
from tokamax._src.ops.attention import base, pallas_triton as library

from attn_tune.kernels.flash_attention._tokamax.arguments import (
    forward_outputs,
    precision_of,
    settings,
)
from attn_tune.kernels.flash_attention.tokamax_triton.config import ForwardConfig
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem


def forward(problem: Problem, config: ForwardConfig, operands: Operands) -> dict[str, Array]:
    """``out`` [B, T, N, V] in the query's dtype and ``lse`` [B, N, T] in float32.

    The kernel multiplies the query by the scale in the query's own dtype. Where that rounds, the logsumexp would be
    wrong in its third digit; query and key are then given as quantised arrays of unit scale, whose product is scaled
    in float32.
    """
    q, k = operands.q, operands.k
    if not scales_exactly(problem):
        # One number a batch element; but keys that are split must have one each, to be split with them.
        q = _of_unit_scale(q, (1, 1))
        k = _of_unit_scale(k, k.shape[1:3] if config.split_k > 1 else (1, 1))
    out, residuals = library.PallasTritonFlashAttention(config=library_config(config))(
        q,
        k,
        operands.v,
        precision=precision_of(problem),
        return_residuals=True,
        **settings(problem, operands),
    )
    return forward_outputs(problem, operands, out, residuals)


def scales_exactly(problem: Problem) -> bool:
    """Whether the query's dtype holds its product with the scale: float32, or a power of two."""
    return problem.dtype == "float32" or math.frexp(problem.scale)[0] == 0.5


def library_config(config: ForwardConfig) -> library.Config:
    """The library's config."""
    return library.Config(
        block_q=config.block_q,
        block_k=config.block_k,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        block_d=config.block_d,
        block_d_out=config.block_d_out,
        split_k=config.split_k,
        pack_mask=config.pack_mask,
    )


def _of_unit_scale(x: Array, tokens_and_heads: tuple[int, ...]) -> Any:
    scale = jnp.ones((x.shape[0], *tokens_and_heads, 1), jnp.float32)
    return base.QArray(qvalue=x, scale=scale)
