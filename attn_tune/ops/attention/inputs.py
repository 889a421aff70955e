"""Random data for one dense ``attention`` call."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn_tune.ops.attention.operands import BackwardInputs, Operands
from attn_tune.ops.attention.problem import Problem
from attn_tune.ops.fields.unusual_values import without_first_sink

VISIBLE_FRACTION = 0.8
# One key in so many, a prime, has biases of odd seeds that are so many times as large: few rows have two such keys,
# between which rounding would decide in float32.
LARGE_BIAS_EVERY, LARGE_BIAS = 61, 300.0


def make_inputs(problem: Problem, direction: str, seed: int) -> Operands | BackwardInputs:
    """Standard normal arrays, a mask with most pairs visible; the same for the same seed.

    A mask of several rows, heads or sequences hides one of them whole. Odd seeds have a few keys with large biases of
    both signs, whose exponential would overflow, and minus infinity as the first sink, which is none.
    """
    p, dtype = problem, jnp.dtype(problem.dtype)
    keys = iter(jax.random.split(jax.random.key(seed), 9))
    sizes = {"b": p.batch, "n": p.num_q_heads, "t": p.q_len, "s": p.kv_len, "1": 1}

    is_odd = seed % 2 == 1

    def normal(*shape: int):
        return jax.random.normal(next(keys), shape, jnp.float32).astype(dtype)

    operands = Operands(
        q=normal(p.batch, p.q_len, p.num_q_heads, p.head_dim),
        k=normal(p.batch, p.kv_len, p.num_kv_heads, p.head_dim),
        v=normal(p.batch, p.kv_len, p.num_kv_heads, p.v_head_dim),
        bias=None if p.bias_dims is None else _with_large(normal(*(sizes[d] for d in p.bias_dims)), seed),
        mask=None if p.mask_dims is None else _mask(next(keys), tuple(sizes[d] for d in p.mask_dims)),
        sinks=without_first_sink(jax.random.normal(next(keys), (p.num_q_heads,)), is_odd) if p.has_sinks else None,
        dropout=next(keys) if p.dropout_rate > 0 else None,
    )
    if direction == "fwd":
        return operands
    return BackwardInputs(
        operands,
        normal(p.batch, p.q_len, p.num_q_heads, p.v_head_dim),
        normal(p.batch, p.num_q_heads, p.q_len, p.kv_len),
    )


def _with_large(bias: Float[Array, "_b _n _t _s"], seed: int | Array) -> Float[Array, "_b _n _t _s"]:
    is_large = (jnp.arange(bias.shape[-1]) % LARGE_BIAS_EVERY == LARGE_BIAS_EVERY // 2) & (seed % 2 == 1)
    return bias * jnp.where(is_large, LARGE_BIAS, 1.0).astype(bias.dtype)


def _mask(key: Array, shape: tuple[int, ...]) -> Bool[Array, "_b _n _t _s"]:
    mask = jax.random.bernoulli(key, VISIBLE_FRACTION, shape)
    # With a single row this would hide everything.
    return mask.at[-1, -1, -1].set(False) if math.prod(shape[:-1]) > 1 else mask
