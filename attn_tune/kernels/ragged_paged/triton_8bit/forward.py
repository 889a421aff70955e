"""The launches of a ragged call whose queries are codes; those of sequences that decode are dequantised for theirs."""

import jax

from attn_tune.kernels.lang.query_codes import dequantised
from attn_tune.kernels.ragged_paged._triton.config import TileConfig
from attn_tune.kernels.ragged_paged._triton.decoding import decode
from attn_tune.kernels.ragged_paged._triton.prefill import prefill
from attn_tune.ops.ragged_paged.operands import Operands
from attn_tune.ops.ragged_paged.problem import Problem


def forward(problem: Problem, config: TileConfig, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [tokens, N, V] in the problem's dtype and ``lse`` [tokens, N] in float32."""
    # A sequence that decodes has the query of its own number.
    first = dequantised(problem, operands, first=operands.kv_lens.shape[0])
    return prefill(problem, config, operands, decode(problem, config, first))
