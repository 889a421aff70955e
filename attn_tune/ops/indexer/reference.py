"""The indexer's scores one query after the other: ``scale * sum_j weights[j] * relu(q[j] . k)``.

The formula is that of DeepSeek-V3.2 (arXiv 2512.02556, section 2.1).
"""

# pyright: reportUnknownMemberType=false

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_tune.ops.indexer.operands import Operands
from attn_tune.ops.indexer.problem import Problem
from attn_tune.ops.typed_jax import map_rows


def reference(problem: Problem, direction: str, operands: Operands) -> dict[str, Array]:
    """``scores`` [B, T, S] in float32 and at the highest precision."""
    return _scores(problem, operands, jnp.dtype(jnp.float32))


def baseline(problem: Problem, direction: str, operands: Operands) -> dict[str, Array]:
    """The same of products in the working dtype with float32 sums."""
    return _scores(problem, operands, operands.q.dtype)


def _scores(p: Problem, o: Operands, dtype: jnp.dtype) -> dict[str, Array]:
    batch, queries = o.q.shape[:2]
    precision = jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None
    token = jnp.arange(o.k.shape[1])

    def one(row: Int[Array, ""]) -> Float[Array, " S"]:
        sequence, query = row // queries, row % queries
        seen = (token >= o.starts[sequence, query]) & (token < o.ends[sequence, query])
        keys = jnp.where(seen[:, None], o.k[sequence], 0).astype(dtype)
        heads = o.q[sequence, query].astype(dtype)
        products = jnp.einsum("nh,sh->sn", heads, keys, precision=precision, preferred_element_type=jnp.float32)
        counted = jax.nn.relu(products) * o.weights[sequence, query]
        return jnp.where(seen, p.scale * jnp.sum(counted, axis=-1), -jnp.inf)

    return {"scores": map_rows(one, jnp.arange(batch * queries)).reshape(batch, queries, -1)}
