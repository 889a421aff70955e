"""The backward on Hopper: chunks are prepared as in the forward, walked both ways at one time, and differentiated."""

import jax

from attn_tune.kernels.gated_delta_rule._triton.prepare import prepare
from attn_tune.kernels.gated_delta_rule._triton.walked import named
from attn_tune.kernels.gated_delta_rule.triton_hopper.backward_walk import walk
from attn_tune.kernels.gated_delta_rule.triton_hopper.config import BackwardConfig
from attn_tune.kernels.gated_delta_rule.triton_hopper.gradients import GradientPlan, differentiate
from attn_tune.kernels.lang.gluon.chunks import CHUNK, COLUMNS, Plan
from attn_tune.kernels.lang.triton.chunks.config import Chunks
from attn_tune.kernels.lang.triton.chunks.static import Static, static_of
from attn_tune.kernels.lang.triton.chunks.wide import parts_of
from attn_tune.ops.gated_delta_rule.operands import BackwardInputs
from attn_tune.ops.gated_delta_rule.problem import Problem


def backward(problem: Problem, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, jax.Array]:
    """``dq``, ``dk``, ``dv``, and ``dg``, ``dbeta``, ``dinitial_state`` of the operands that there are."""
    o = inputs.operands
    chunks, static, plan, gradient_plan = constants_of(problem, config, inputs)
    prepared = prepare(problem, chunks, o, parts_of(static), squares=True)
    kept, walked = walk(inputs, prepared, static, plan)
    return named(o, walked, differentiate(inputs, prepared, kept, walked, static, gradient_plan))


def constants_of(
    problem: Problem, config: BackwardConfig, inputs: BackwardInputs
) -> tuple[Chunks, Static, Plan, GradientPlan]:
    """The constants of the launch that prepares chunks, of all, and of the two launches after it."""
    chunks = Chunks(chunk=CHUNK, prepare_warps=config.prepare_warps, prepare_registers=config.prepare_registers)
    static = static_of(problem, chunks, COLUMNS)
    tokens = inputs.dout.shape[0] * inputs.dout.shape[1]
    plan = Plan(stages=config.num_stages, groups=1, tokens=tokens, places=static.slots * static.heads)
    programs = min(config.gradient_programs, static.slots * static.key_heads)
    return chunks, static, plan, GradientPlan(stages=config.gradient_stages, programs=programs, tokens=tokens)
