"""The output before its division by the softmax denominator: ``out * exp(lse - row_max)``."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn_tune.kernels.flash_attention.operands import Operands
from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.visibility import in_bounds

_CHUNK = 256


def row_maximum(problem: Problem, operands: Operands) -> Float[Array, "B N T"]:
    """The largest visible logit of each row (its sink included), minus infinity where there is none.

    One pass over key chunks in O(T) memory. Gradients do not flow through it: a softmax does not depend on which
    constant is subtracted.
    """
    operands = jax.tree.map(jax.lax.stop_gradient, operands)
    batch, q_len, heads, _ = operands.q.shape
    kv_len = operands.k.shape[1]
    chunks = -(-kv_len // _CHUNK)
    start = jnp.full((batch, heads, q_len), -jnp.inf, jnp.float32)
    if operands.sinks is not None:
        start = jnp.broadcast_to(operands.sinks[None, :, None].astype(jnp.float32), start.shape)

    def step(index, maximum):
        columns = index * _CHUNK + jnp.arange(_CHUNK)
        # Columns past the end read the last key again, which cannot change a maximum.
        columns = jnp.minimum(columns, kv_len - 1)
        return jnp.maximum(maximum, _logits(problem, operands, columns).max(axis=-1))

    return jax.lax.fori_loop(0, chunks, step, start)


def unnormalise(
    out: Float[Array, "B T N V"], lse: Float[Array, "B N T"], maximum: Float[Array, "B N T"]
) -> Float[Array, "B T N V"]:
    """``out * exp(lse - maximum)``; zero where the row sees nothing."""
    # Two guards, so that the untaken branch has no NaN gradient either.
    empty = jnp.isneginf(maximum)
    factor = jnp.exp(jnp.where(empty, 0.0, lse) - jnp.where(empty, 0.0, maximum))
    factor = jnp.where(empty, 0.0, factor).transpose(0, 2, 1)[..., None]
    return (out.astype(jnp.float32) * factor).astype(out.dtype)


def _logits(problem: Problem, operands: Operands, columns: Array) -> Float[Array, "B N T C"]:
    q, k = operands.q, operands.k[:, columns]
    batch, q_len, heads, head_dim = q.shape
    kv_len, kv_heads = operands.k.shape[1], k.shape[2]
    grouped = q.reshape(batch, q_len, kv_heads, heads // kv_heads, head_dim)
    logits = jnp.einsum(
        "btkgh,bskh->bkgts",
        grouped,
        k,
        precision=problem.precision,
        preferred_element_type=jnp.float32,
    ).reshape(batch, heads, q_len, -1)
    logits = (logits * problem.scale).astype(problem.logits_dtype).astype(jnp.float32)
    if problem.soft_cap is not None:
        logits = problem.soft_cap * jnp.tanh(logits / problem.soft_cap)
    if operands.bias is not None:
        logits = logits + _columns(operands.bias, columns).astype(jnp.float32)
    visible = jnp.ones((1, 1, 1, 1), bool)
    if operands.mask is not None:
        visible = _columns(operands.mask, columns)
    if operands.q_segments is not None and operands.kv_segments is not None:
        same = operands.q_segments[:, :, None] == operands.kv_segments[:, None, columns]
        visible = visible & same[:, None]
    if operands.q_positions is not None and operands.kv_positions is not None:
        q_positions = operands.q_positions[:, None, :, None]
        kv_positions = operands.kv_positions[:, columns][:, None, None, :]
    else:
        q_positions = (jnp.arange(q_len) + kv_len - q_len)[None, None, :, None]
        kv_positions = columns[None, None, None, :]
    bounds = in_bounds(q_positions, kv_positions, causal=problem.causal, window=problem.window)
    return jnp.where(visible & bounds, logits, -jnp.inf)


def _columns(array: Array, columns: Array) -> Array:
    return array if array.shape[3] == 1 else array[..., columns]
