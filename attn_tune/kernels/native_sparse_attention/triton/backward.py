"""The backward: one launch for dq; lists, a launch over their pieces and one that adds them up for dk and dv."""

import jax

from attn_tune.kernels.native_sparse_attention.triton.backward_dkv import backward_dkv
from attn_tune.kernels.native_sparse_attention.triton.backward_dq import backward_dq
from attn_tune.kernels.native_sparse_attention.triton.config import BackwardConfig
from attn_tune.ops.native_sparse_attention.operands import BackwardInputs
from attn_tune.ops.native_sparse_attention.problem import Problem


def backward(problem: Problem, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, jax.Array]:
    """``dq``, ``dk`` and ``dv``, each like its primal; one that is dropped costs nothing under ``jit``."""
    dk, dv = backward_dkv(problem, config.dkv, inputs)
    return {"dq": backward_dq(problem, config.dq, inputs), "dk": dk, "dv": dv}
