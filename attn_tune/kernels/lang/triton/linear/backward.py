"""The backward of linear attention in chunks: walks of both directions, then each chunk by itself."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from attn_tune.kernels.lang.recurrent import Recurrent
from attn_tune.kernels.lang.triton.linear.channel_gradients import differentiate_channels
from attn_tune.kernels.lang.triton.linear.channels import prepare
from attn_tune.kernels.lang.triton.linear.config import BackwardConfig, ChannelBackwardConfig
from attn_tune.kernels.lang.triton.linear.decays import chunk_decays
from attn_tune.kernels.lang.triton.linear.gradients import differentiate
from attn_tune.kernels.lang.triton.linear.scan import Tokens
from attn_tune.kernels.lang.triton.linear.static import static_of
from attn_tune.kernels.lang.triton.linear.walks import walk


def backward(problem: Recurrent, config: BackwardConfig, inputs: Any) -> dict[str, jax.Array]:
    """``dq``, ``dk``, ``dv``, and ``dg``, ``dinitial_state`` of the operands that there are."""
    o = inputs.operands
    static = static_of(problem, config, config.block_v)
    gradient_static = static_of(problem, config, config.gradient_block_v)
    if isinstance(config, ChannelBackwardConfig):
        tokens = prepare(o, config.prepare_warps, config.prepare_columns, static)
        static = dataclasses.replace(static, key_heads=static.heads, group=1)
        walked = walk(tokens, o.initial_state, inputs.dout, inputs.dstate, config, static)
        dq, dk, dv, dg = differentiate_channels(o, tokens, inputs.dout, walked, config, gradient_static)
    else:
        decays = chunk_decays(o, static)
        tokens = Tokens(o.q, o.k, o.v, g=o.g, decays=decays, mixed=None, factors=None, cu_seqlens=o.cu_seqlens)
        walked = walk(tokens, o.initial_state, inputs.dout, inputs.dstate, config, static)
        dq, dk, dv, dg = differentiate(o, inputs.dout, walked, config, gradient_static)
    found = {"dq": dq, "dk": dk, "dv": dv}
    if o.g is not None:
        found["dg"] = jnp.sum(dg, axis=(0, 1)) if problem.gate == "constant" else dg
    if o.initial_state is not None:
        found["dinitial_state"] = walked.dinitial_state
    return found
