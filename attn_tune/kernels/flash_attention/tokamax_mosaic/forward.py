"""The forward over tokamax's Mosaic GPU attention."""

from jaxtyping import Array
from tokamax._src.ops.attention import pallas_mosaic_gpu as library

from attn_tune.kernels.flash_attention._tokamax.arguments import (
    forward_outputs,
    precision_of,
    settings,
)
from attn_tune.kernels.flash_attention.tokamax_mosaic.config import ForwardConfig
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem


def forward(problem: Problem, config: ForwardConfig, operands: Operands) -> dict[str, Array]:
    """``out`` [B, T, N, V] in the query's dtype and ``lse`` [B, N, T] in float32."""
    out, residuals = library.PallasMosaicGpuFlashAttention(config=library_config(config))(
        operands.q,
        operands.k,
        operands.v,
        precision=precision_of(problem),
        return_residuals=True,
        **settings(problem, operands),
    )
    return forward_outputs(problem, operands, out, residuals)


def library_config(config: ForwardConfig) -> library.ConfigSM90:
    """The library's config."""
    return library.ConfigSM90(
        block_q=config.block_q,
        block_kv=config.block_kv,
        num_stages=config.num_stages,
        persistent=config.persistent,
        split_k=config.split_k,
        fold_q_sequence_heads=config.fold_q_sequence_heads,
    )
