"""Sparse latent attention in plain JAX: the keys of some queries are gathered, then both products are batched."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attn_tune.kernels.sparse_mla.xla.config import Config
from attn_tune.ops.sparse_mla.operands import Operands
from attn_tune.ops.sparse_mla.problem import Problem


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, Array]:
    """``out`` [B, T, N, V] in q's dtype and ``lse`` [B, T, N] in float32."""
    p, o = problem, operands
    batch, queries, heads, _ = o.q.shape
    precision = "highest" if o.q.dtype == jnp.float32 else None
    sequence = jnp.repeat(jnp.arange(batch), queries)

    def product(spec: str, x: Array, y: Array) -> Array:
        return jnp.einsum(spec, x, y, preferred_element_type=jnp.float32, precision=precision)

    def one(query: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        q, named, row = query
        valid = (named >= 0) & (named < o.kv.shape[1])
        keys = jnp.where(valid[:, None], o.kv[row, jnp.where(valid, named, 0)], jnp.zeros((), o.kv.dtype))
        logits = jnp.where(valid, product("nh,sh->ns", q, keys) * p.scale, -jnp.inf)
        highest = jnp.max(logits, axis=-1)
        if o.sinks is not None:
            highest = jnp.maximum(highest, o.sinks)
        shift = jnp.where(jnp.isneginf(highest), 0.0, highest)
        weights = jnp.exp(logits - shift[:, None])
        total = jnp.sum(weights, axis=-1)
        if o.sinks is not None:
            total += jnp.exp(o.sinks - shift)
        out = product("ns,sv->nv", weights.astype(keys.dtype), keys[:, : p.v_head_dim])
        some = jnp.where(total > 0, total, 1.0)
        lse = jnp.where(total > 0, shift + jnp.log(some), -jnp.inf)
        return (out / some[:, None]).astype(q.dtype), lse

    rows = (o.q.reshape(-1, *o.q.shape[2:]), o.indices.reshape(-1, o.indices.shape[2]), sequence)
    out, lse = jax.lax.map(one, rows, batch_size=min(config.rows, batch * queries))
    return {"out": out.reshape(batch, queries, heads, -1), "lse": lse.reshape(batch, queries, heads)}
