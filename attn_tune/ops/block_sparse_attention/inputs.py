"""Random data for one block-sparse call, made on the device."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attn_tune.ops.block_sparse_attention.operands import BackwardInputs, Operands
from attn_tune.ops.block_sparse_attention.patterns import pattern
from attn_tune.ops.block_sparse_attention.problem import Problem
from attn_tune.ops.block_sparse_attention.reference import as_dense, reference
from attn_tune.ops.flash_attention import inputs as dense
from attn_tune.ops.typed_jax import jit


def make_inputs(problem: Problem, direction: str, seed: int) -> Operands | BackwardInputs:
    """Inputs of one call, the same for the same seed: those of ``flash_attention`` and a mask of the workload.

    The mask is the same for every seed. For ``bwd`` the residuals come from the reference, and ``delta`` has a
    cotangent of the lse if the problem has one.
    """
    p = problem
    made = dense.make_operands(as_dense(p), direction, seed)
    operands = Operands(
        q=made.q,
        k=made.k,
        v=made.v,
        block_mask=jnp.asarray(pattern(p)),
        q_segments=made.q_segments,
        kv_segments=made.kv_segments,
        kv_lengths=made.kv_lengths,
    )
    if direction == "fwd":
        return operands
    exact = _reference(p, "fwd", operands)
    dout_key, dlse_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1))
    dout = _normal(dout_key, exact["out"].shape).astype(made.q.dtype)
    found = dense.backward_inputs(made, exact, dout)
    delta = found.delta
    if p.has_lse_gradient:
        delta = jnp.where(jnp.isneginf(found.residuals.lse), 0.0, delta - _normal(dlse_key, delta.shape))
    return BackwardInputs(operands, found.residuals, dout, delta)


_reference = jit(reference, static_argnums=(0, 1))


def _normal(key: Array, shape: tuple[int, ...]) -> Array:
    return jax.random.normal(key, shape, jnp.float32)
