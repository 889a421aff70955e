"""The backward: chunks are prepared as in the forward, walked forwards and backwards, and differentiated."""

import jax

from attn_tune.kernels.kda.triton.backward_scan import walk_chunks
from attn_tune.kernels.kda.triton.config import BackwardConfig
from attn_tune.kernels.kda.triton.gradients import differentiate_channels
from attn_tune.kernels.kda.triton.pair_gradients import differentiate_pairs
from attn_tune.kernels.kda.triton.prepare import kda_static, prepare
from attn_tune.kernels.lang.recurrent import Recurrent
from attn_tune.ops.recurrent.operands import BackwardInputs


def backward(problem: Recurrent, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, jax.Array]:
    """``dq``, ``dk``, ``dv``, ``dg``, and ``dbeta``, ``dinitial_state`` of the operands that there are."""
    o = inputs.operands
    static = kda_static(problem, config, config.block_v)
    prepared = prepare(problem, config, o, inputs.dout)
    kept, walked = walk_chunks(inputs, prepared, config, static)
    static = kda_static(problem, config, config.gradient_block_v)
    dv, matrices, strengths = differentiate_pairs(inputs, prepared, kept, walked, config, static)
    dq, dk, dg, dbeta = differentiate_channels(inputs, prepared, kept, walked, matrices, strengths, config, static)
    found = {"dq": dq, "dk": dk, "dv": dv, "dg": dg}
    if o.beta is not None:
        found["dbeta"] = dbeta
    if o.initial_state is not None:
        found["dinitial_state"] = walked.dinitial_state
    return found
