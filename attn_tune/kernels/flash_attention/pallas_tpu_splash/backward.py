"""The backward: one launch for dq, one for dk and dv. They share nothing, so that one may be dropped."""

from jaxtyping import Array

from attn_tune.kernels.flash_attention._splash.backward import key_gradients, query_gradient
from attn_tune.kernels.flash_attention.pallas_tpu_splash.config import BackwardConfig
from attn_tune.ops.flash_attention.operands import BackwardInputs
from attn_tune.ops.flash_attention.problem import Problem


def backward(problem: Problem, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, Array]:
    """``dq``, ``dk`` and ``dv``, each like its primal."""
    dq = query_gradient(problem, config.dq, inputs)
    return {"dq": dq} | key_gradients(problem, config.dkv, inputs)
