"""Decoding one sequence after the other: in float32 as the reference, in the working dtype as the baseline."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from attn_tune.ops.fields.cache_sequence import attend, sequence_of
from attn_tune.ops.paged_decode.operands import Operands
from attn_tune.ops.paged_decode.problem import Problem
from attn_tune.ops.typed_jax import map_rows


def reference(problem: Problem, direction: str, operands: Operands) -> dict[str, Array]:
    """``out`` [B, T, N, V] and ``lse`` [B, T, N], all in float32 and at the highest precision."""
    return _attend(problem, operands, jnp.dtype(jnp.float32))


def baseline(problem: Problem, direction: str, operands: Operands) -> dict[str, Array]:
    """The same in the queries' dtype: codes are dequantised to it, weights rounded to it; logits are float32."""
    return _attend(problem, operands, operands.q.dtype)


def _attend(p: Problem, o: Operands, dtype: jnp.dtype) -> dict[str, Array]:
    def one(index: Int[Array, ""]) -> tuple[Array, Array]:
        k, v = sequence_of(p, o, index, dtype)
        length = jnp.clip(o.kv_lens[index], 0, k.shape[0])
        token = jnp.arange(k.shape[0])
        position = (length - p.q_len + jnp.arange(p.q_len))[:, None]
        visible = (token <= position) & (token < length)
        if p.window is not None:
            visible &= token >= position - p.window
        return attend(p, o.sinks, o.q[index], k, v, visible)

    out, lse = map_rows(one, jnp.arange(o.q.shape[0]))
    return {"out": out.astype(dtype), "lse": lse}
