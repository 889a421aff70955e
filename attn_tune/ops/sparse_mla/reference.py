"""Sparse latent attention one query after the other: in float32 as the reference, in the working dtype as the baseline.

A key counts as often as it is named: of each token of a short sequence it is counted how often (DeepSeek-V3.2, arXiv
2512.02556, section 2.1, attends to the set of the tokens that its indexer selects). Of a longer one the tokens are
gathered.
"""

# pyright: reportUnknownMemberType=false

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_tune.ops.sparse_mla.operands import Operands
from attn_tune.ops.sparse_mla.problem import Problem
from attn_tune.ops.typed_jax import map_rows


def reference(problem: Problem, direction: str, operands: Operands) -> dict[str, Array]:
    """``out`` [B, T, N, V] and ``lse`` [B, T, N], all in float32 and at the highest precision."""
    return _attend(problem, operands, jnp.dtype(jnp.float32))


def baseline(problem: Problem, direction: str, operands: Operands) -> dict[str, Array]:
    """The same in the queries' dtype: weights are rounded to it; logits are float32."""
    return _attend(problem, operands, operands.q.dtype)


def _attend(p: Problem, o: Operands, dtype: jnp.dtype) -> dict[str, Array]:
    batch, queries = o.q.shape[:2]
    is_short = o.kv.shape[1] <= o.indices.shape[2]

    def one(row: Int[Array, ""]) -> tuple[Array, Array]:
        sequence, query = row // queries, row % queries
        named = o.indices[sequence, query]
        valid = (named >= 0) & (named < o.kv.shape[1])
        if is_short:
            place = jnp.where(valid, named, o.kv.shape[1])
            counts = jnp.zeros(o.kv.shape[1]).at[place].add(1.0, mode="drop")
            keys = o.kv[sequence]
        else:
            counts, keys = valid.astype(jnp.float32), o.kv[sequence, jnp.where(valid, named, 0)]
        keys = jnp.where((counts > 0)[:, None], keys, 0).astype(dtype)
        return _softmax(p, o.q[sequence, query].astype(dtype), keys, counts, o.sinks)

    out, lse = map_rows(one, jnp.arange(batch * queries))
    return {
        "out": out.reshape(*o.q.shape[:3], p.v_head_dim).astype(dtype),
        "lse": lse.reshape(o.q.shape[:3]),
    }


def _softmax(
    p: Problem,
    q: Float[Array, "N H"],
    keys: Float[Array, "keys H"],
    counts: Float[Array, " keys"],
    sinks: Float[Array, " N"] | None,
) -> tuple[Float[Array, "N V"], Float[Array, " N"]]:
    precision = jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
    products = jnp.einsum("nh,sh->ns", q, keys, precision=precision, preferred_element_type=jnp.float32)
    logits = jnp.where(counts > 0, products * p.scale, -jnp.inf)
    highest = jnp.max(logits, axis=-1)
    if sinks is not None:
        highest = jnp.maximum(highest, sinks)
    shift = jnp.where(jnp.isneginf(highest), 0.0, highest)[:, None]
    weights = counts * jnp.exp(logits - shift)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if sinks is not None:
        total += jnp.exp(sinks[:, None] - shift)
    shares = (weights / jnp.where(total > 0, total, 1.0)).astype(keys.dtype)
    values = keys[:, : p.v_head_dim]
    out = jnp.einsum("ns,sv->nv", shares, values, precision=precision, preferred_element_type=jnp.float32)
    lse = jnp.where(total > 0, shift + jnp.log(jnp.where(total > 0, total, 1.0)), -jnp.inf)
    return out, lse[:, 0]
