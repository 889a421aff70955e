"""Random data for one dense ``attention`` call."""

import jax
import jax.numpy as jnp

from attn_tune.ops.attention.operands import BackwardInputs, Operands
from attn_tune.ops.attention.problem import Problem

VISIBLE_FRACTION = 0.8


def make_inputs(problem: Problem, direction: str, seed: int) -> Operands | BackwardInputs:
    """Standard normal arrays, a mask with most pairs visible; the same for the same seed."""
    p, dtype = problem, jnp.dtype(problem.dtype)
    keys = iter(jax.random.split(jax.random.key(seed), 9))
    sizes = {"b": p.batch, "n": p.num_q_heads, "t": p.q_len, "s": p.kv_len, "1": 1}

    def normal(*shape: int):
        return jax.random.normal(next(keys), shape, jnp.float32).astype(dtype)

    operands = Operands(
        q=normal(p.batch, p.q_len, p.num_q_heads, p.head_dim),
        k=normal(p.batch, p.kv_len, p.num_kv_heads, p.head_dim),
        v=normal(p.batch, p.kv_len, p.num_kv_heads, p.v_head_dim),
        bias=None if p.bias_dims is None else normal(*(sizes[d] for d in p.bias_dims)),
        mask=None
        if p.mask_dims is None
        else jax.random.bernoulli(next(keys), VISIBLE_FRACTION, tuple(sizes[d] for d in p.mask_dims)),
        sinks=jax.random.normal(next(keys), (p.num_q_heads,)) if p.has_sinks else None,
        dropout=next(keys) if p.dropout_rate > 0 else None,
    )
    if direction == "fwd":
        return operands
    return BackwardInputs(
        operands,
        normal(p.batch, p.q_len, p.num_q_heads, p.v_head_dim),
        normal(p.batch, p.num_q_heads, p.q_len, p.kv_len),
    )
