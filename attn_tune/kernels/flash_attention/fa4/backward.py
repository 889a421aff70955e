"""The backward over FlashAttention-4's kernels for Hopper: atomics add up dq, and dk and dv of grouped heads."""

from jaxtyping import Array

from attn_tune.kernels.flash_attention._fa4.calls import backward_call
from attn_tune.kernels.flash_attention._fa4.config import BackwardConfig
from attn_tune.ops.flash_attention.operands import BackwardInputs
from attn_tune.ops.flash_attention.problem import Problem


def backward(problem: Problem, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, Array]:
    """``dq``, ``dk`` and ``dv``, each like its primal."""
    return backward_call(problem, config, inputs, deterministic=False)
