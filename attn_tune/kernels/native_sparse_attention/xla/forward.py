"""The forward in plain JAX: the blocks of some queries are gathered, then both products are batched."""

import jax.numpy as jnp
from jaxtyping import Array

from attn_tune.kernels.native_sparse_attention.xla.config import Config
from attn_tune.kernels.native_sparse_attention.xla.gathered import map_queries, named_by, product
from attn_tune.ops.native_sparse_attention.blocks import blocks_of
from attn_tune.ops.native_sparse_attention.operands import Operands
from attn_tune.ops.native_sparse_attention.problem import Problem


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, Array]:
    """``out`` [B, T, N, V] in q's dtype and ``lse`` [B, T, N] in float32."""
    p, o = problem, operands
    blocks = blocks_of(p, o.cu_seqlens)

    def one(given: tuple[Array, ...]) -> tuple[Array, Array]:
        row, query, q = given
        named = named_by(p, o, blocks, row, query)
        logits = jnp.where(named.valid[:, None], product(p, "kgh,ksh->kgs", q, named.k) * p.scale, -jnp.inf)
        highest = jnp.max(logits, axis=-1)
        shift = jnp.where(jnp.isneginf(highest), 0.0, highest)
        weights = jnp.exp(logits - shift[..., None])
        total = jnp.sum(weights, axis=-1)
        out = product(p, "kgs,ksv->kgv", weights.astype(named.v.dtype), named.v)
        some = jnp.where(total > 0, total, 1.0)
        lse = jnp.where(total > 0, shift + jnp.log(some), -jnp.inf)
        return (out / some[..., None]).astype(q.dtype), lse

    out, lse = map_queries(p, config.rows, one, o.q)
    rows = o.q.shape[:3]
    return {"out": out.reshape(*rows, p.v_head_dim), "lse": lse.reshape(rows)}
