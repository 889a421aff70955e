"""Decoding one sequence after the other: in float32 as the reference, in the working dtype as the baseline."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from attn_tune.ops.fields.cache_sequence import sequence_of
from attn_tune.ops.paged_decode.operands import Operands
from attn_tune.ops.paged_decode.problem import Problem


def reference(problem: Problem, direction: str, operands: Operands) -> dict[str, Array]:
    """``out`` [B, T, N, V] and ``lse`` [B, T, N], all in float32 and at the highest precision."""
    return _attend(problem, operands, jnp.dtype(jnp.float32))


def baseline(problem: Problem, direction: str, operands: Operands) -> dict[str, Array]:
    """The same in the queries' dtype: codes are dequantised to it, weights rounded to it; logits are float32."""
    return _attend(problem, operands, operands.q.dtype)


def _attend(p: Problem, o: Operands, dtype: jnp.dtype) -> dict[str, Array]:
    group = p.group_size
    precision = "highest" if dtype == jnp.float32 else None

    def one(index: Int[Array, ""]) -> tuple[Array, Array]:
        length = o.kv_lens[index]
        k, v = sequence_of(p, o, index, dtype)
        token = jnp.arange(k.shape[0])
        position = (length - p.q_len + jnp.arange(p.q_len))[:, None]
        visible = (token <= position) & (token < length)
        if p.window is not None:
            visible &= token >= position - p.window
        # What no query sees may be NaN, which no product with zero removes.
        seen = jnp.any(visible, axis=0)[:, None, None]
        k, v = jnp.where(seen, k, 0), jnp.where(seen, v, 0)
        q = o.q[index].astype(dtype).reshape(p.q_len, p.num_kv_heads, group, p.head_dim)
        logits = jnp.einsum("tkgh,skh->tkgs", q, k, preferred_element_type=jnp.float32, precision=precision) * p.scale
        if p.soft_cap is not None:
            logits = p.soft_cap * jnp.tanh(logits / p.soft_cap)
        logits = jnp.where(visible[:, None, None, :], logits, -jnp.inf)
        if o.sinks is not None:
            sinks = jnp.broadcast_to(o.sinks.reshape(1, p.num_kv_heads, group, 1), (*logits.shape[:-1], 1))
            logits = jnp.concatenate([logits, sinks], axis=-1)
        lse = jax.nn.logsumexp(logits, axis=-1)
        weights = jnp.exp(logits - jnp.where(jnp.isneginf(lse), 0.0, lse)[..., None])[..., : k.shape[0]]
        out = jnp.einsum(
            "tkgs,skv->tkgv", weights.astype(dtype), v, preferred_element_type=jnp.float32, precision=precision
        )
        return out.reshape(p.q_len, p.num_q_heads, -1), lse.reshape(p.q_len, p.num_q_heads)

    out, lse = jax.lax.map(one, jnp.arange(o.q.shape[0]))
    return {"out": out.astype(dtype), "lse": lse}
