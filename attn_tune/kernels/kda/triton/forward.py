"""The forward in chunks: the state is carried from chunk to chunk, and all else is products of matrices."""

import jax

from attn_tune.kernels.kda.triton.config import ForwardConfig
from attn_tune.kernels.kda.triton.prepare import kda_static, prepare
from attn_tune.kernels.kda.triton.scan import scan
from attn_tune.kernels.kda.triton.segments import segment_starts
from attn_tune.kernels.lang.recurrent import Recurrent
from attn_tune.kernels.lang.slots import over_slots
from attn_tune.ops.recurrent.operands import Operands


@over_slots
def forward(problem: Recurrent, config: ForwardConfig, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [R, T, N, V], and the final states ``state`` [B, N, H, V] if the problem has them."""
    static = kda_static(problem, config, config.block_v, config.segments)
    prepared = prepare(problem, config, operands)
    starts = operands.initial_state
    if config.segments > 1:
        starts = segment_starts(operands, prepared, config, static)
    out, state = scan(operands, prepared, starts, config, static)
    return {"out": out, "state": state} if problem.has_final_state else {"out": out}
