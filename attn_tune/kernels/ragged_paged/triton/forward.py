"""The launches of a ragged call: decoding for the first sequences, and tiles of queries for all others."""

import jax

from attn_tune.kernels.ragged_paged._triton.config import TileConfig
from attn_tune.kernels.ragged_paged._triton.decoding import decode
from attn_tune.kernels.ragged_paged._triton.prefill import prefill
from attn_tune.ops.ragged_paged.operands import Operands
from attn_tune.ops.ragged_paged.problem import Problem


def forward(problem: Problem, config: TileConfig, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [tokens, N, V] in q's dtype and ``lse`` [tokens, N] in float32."""
    return prefill(problem, config, operands, decode(problem, config, operands))
