"""The backward: one launch for dq, one for dk and dv, one for the bias gradient when there is a bias.

The launches share nothing but their inputs, so that a gradient that is not used costs nothing under jit.
"""

import jax

from attn_tune.kernels.flash_attention._triton.arrays import kernel_arrays
from attn_tune.kernels.flash_attention._triton.backward_dbias import backward_dbias, dbias_config
from attn_tune.kernels.flash_attention.triton.backward_dkv import backward_dkv
from attn_tune.kernels.flash_attention.triton.backward_dq import backward_dq
from attn_tune.kernels.flash_attention.triton.config import BackwardConfig
from attn_tune.ops.flash_attention.operands import BackwardInputs
from attn_tune.ops.flash_attention.problem import Problem


def backward(problem: Problem, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, jax.Array]:
    """``dq``, ``dk``, ``dv``, and ``dbias`` if the problem has a bias; each like its primal."""
    arrays = kernel_arrays(inputs)
    dk, dv = backward_dkv(problem, config.dkv, arrays)
    gradients = {"dq": backward_dq(problem, config.dq, arrays), "dk": dk, "dv": dv}
    if problem.bias_dims is not None:
        gradients["dbias"] = backward_dbias(problem, dbias_config(problem), arrays)
    return gradients
