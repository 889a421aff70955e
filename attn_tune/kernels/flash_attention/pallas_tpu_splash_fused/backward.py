"""The backward in one launch: five products a block where two launches have seven, and partial sums of dq in HBM."""

from jaxtyping import Array

from attn_tune.kernels.flash_attention._splash.backward import key_gradients
from attn_tune.kernels.flash_attention.pallas_tpu_splash_fused.config import BackwardConfig
from attn_tune.ops.flash_attention.operands import BackwardInputs
from attn_tune.ops.flash_attention.problem import Problem


def backward(problem: Problem, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, Array]:
    """``dq``, ``dk`` and ``dv``, each like its primal."""
    return key_gradients(problem, config, inputs)
