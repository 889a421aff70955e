"""The backward: chunks are prepared as in the forward, walked forwards and backwards, and differentiated."""

import dataclasses

import jax
import jax.numpy as jnp

from attn_tune.kernels.gated_delta_rule._triton.prepare import prepare
from attn_tune.kernels.gated_delta_rule._triton.walked import named
from attn_tune.kernels.gated_delta_rule.triton.backward_scan import walk
from attn_tune.kernels.gated_delta_rule.triton.config import BackwardConfig
from attn_tune.kernels.gated_delta_rule.triton.gradients import differentiate
from attn_tune.kernels.gated_delta_rule.triton.limits import is_narrow
from attn_tune.kernels.lang.triton.chunks.static import static_of
from attn_tune.kernels.lang.triton.chunks.wide import parts_of
from attn_tune.ops.gated_delta_rule.operands import BackwardInputs
from attn_tune.ops.gated_delta_rule.problem import Problem


def backward(problem: Problem, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, jax.Array]:
    """``dq``, ``dk``, ``dv``, and ``dg``, ``dbeta``, ``dinitial_state`` of the operands that there are."""
    if is_narrow(problem) and problem.dtype != "float32":
        wide = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == problem.dtype else x, inputs)
        found = backward(dataclasses.replace(problem, dtype="float32"), config, wide)
        return {name: x.astype(problem.dtype) if name in ("dq", "dk", "dv") else x for name, x in found.items()}
    o = inputs.operands
    static = static_of(problem, config, config.block_v)
    prepared = prepare(problem, config, o, parts_of(static), carries=True)
    kept, walked = walk(inputs, prepared, config, static)
    static = static_of(problem, config, config.gradient_block_v)
    return named(o, walked, differentiate(inputs, kept, walked, prepared.decays, config, static))
