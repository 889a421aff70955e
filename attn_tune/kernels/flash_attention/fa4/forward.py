"""The forward over FlashAttention-4's kernel for Hopper."""

from jaxtyping import Array

from attn_tune.kernels.flash_attention._fa4.calls import forward_call
from attn_tune.kernels.flash_attention._fa4.config import ForwardConfig
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem


def forward(problem: Problem, config: ForwardConfig, operands: Operands) -> dict[str, Array]:
    """``out`` [B, T, N, V] in the query's dtype and ``lse`` [B, N, T] in float32."""
    return forward_call(problem, config, operands)
