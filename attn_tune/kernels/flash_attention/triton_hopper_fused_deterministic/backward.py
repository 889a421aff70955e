"""The fused backward for Hopper that adds up dq in the order of the keys."""

import jax

from attn_tune.kernels.flash_attention._hopper_fused.calls import backward_call
from attn_tune.kernels.flash_attention._hopper_fused.config import BackwardConfig
from attn_tune.ops.flash_attention.operands import BackwardInputs
from attn_tune.ops.flash_attention.problem import Problem


def backward(problem: Problem, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, jax.Array]:
    """``dq``, ``dk`` and ``dv``, each like its primal."""
    return backward_call(problem, config, inputs, ordered=True)
