"""The forward of linear attention in chunks."""

import dataclasses
from typing import Any

import jax

from attn_tune.kernels.lang.recurrent import Recurrent
from attn_tune.kernels.lang.slots import over_slots
from attn_tune.kernels.lang.triton.linear.channels import prepare
from attn_tune.kernels.lang.triton.linear.config import ChannelForwardConfig, ForwardConfig
from attn_tune.kernels.lang.triton.linear.decays import chunk_decays
from attn_tune.kernels.lang.triton.linear.scan import Tokens, scan
from attn_tune.kernels.lang.triton.linear.static import static_of


@over_slots
def forward(problem: Recurrent, config: ForwardConfig, operands: Any) -> dict[str, jax.Array]:
    """``out`` [R, T, N, V], and the final states ``state`` [B, N, H, V] if the problem has them."""
    o = operands
    static = static_of(problem, config, config.block_v, config.segments, config.turned)
    if isinstance(config, ChannelForwardConfig):
        tokens = prepare(o, config.prepare_warps, config.prepare_columns, static)
        static = dataclasses.replace(static, key_heads=static.heads, group=1)
    else:
        decays = chunk_decays(o, static)
        tokens = Tokens(o.q, o.k, o.v, g=o.g, decays=decays, mixed=None, factors=None, cu_seqlens=o.cu_seqlens)
    out, state = scan(tokens, o.initial_state, config, static)
    return {"out": out, "state": state} if problem.has_final_state else {"out": out}
