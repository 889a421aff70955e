"""The forward on Hopper: chunks are prepared, and their walks hold states in registers (``walk``)."""

import jax

from attn_tune.kernels.gated_delta_rule._triton.prepare import prepare
from attn_tune.kernels.gated_delta_rule.triton_hopper.config import Config
from attn_tune.kernels.gated_delta_rule.triton_hopper.scan import scan
from attn_tune.kernels.gated_delta_rule.triton_hopper.segments import segment_starts
from attn_tune.kernels.lang.gluon.chunks import CHUNK, COLUMNS, Plan
from attn_tune.kernels.lang.slots import over_slots
from attn_tune.kernels.lang.triton.chunks.config import Chunks
from attn_tune.kernels.lang.triton.chunks.static import Static, static_of
from attn_tune.ops.gated_delta_rule.operands import Operands
from attn_tune.ops.gated_delta_rule.problem import Problem


@over_slots
def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, jax.Array]:
    """``out`` [R, T, N, V], and the final states ``state`` [B, N, H, V] if the problem has them."""
    chunks, static, plan = constants_of(problem, config, operands)
    prepared = prepare(problem, chunks, operands, squares=True)
    starts = operands.initial_state
    if config.segments > 1:
        starts = segment_starts(operands, prepared, static, plan)
    out, state = scan(operands, prepared, starts, static, plan)
    return {"out": out, "state": state} if problem.has_final_state else {"out": out}


def constants_of(problem: Problem, config: Config, operands: Operands) -> tuple[Chunks, Static, Plan]:
    """The constants of the launch that prepares chunks, of all, and of those on Hopper."""
    chunks = Chunks(chunk=CHUNK, prepare_warps=config.prepare_warps, prepare_registers=config.prepare_registers)
    static = static_of(problem, chunks, COLUMNS * config.groups, config.segments)
    plan = Plan(
        stages=config.num_stages,
        groups=config.groups,
        tokens=operands.q.shape[0] * operands.q.shape[1],
        places=static.slots * static.heads,
        has_outputs=True,
    )
    return chunks, static, plan
