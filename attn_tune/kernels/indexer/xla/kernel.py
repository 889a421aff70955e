"""The indexer in plain JAX: all heads of some queries meet all keys, and their products are weighed and added."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attn_tune.kernels.indexer.xla.config import Config
from attn_tune.ops.indexer.operands import Operands
from attn_tune.ops.indexer.problem import Problem


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, Array]:
    """``scores`` [B, T, S] in float32."""
    o = operands
    queries = o.q.shape[1]
    token = jnp.arange(o.k.shape[1])
    precision = "highest" if o.q.dtype == jnp.float32 else None

    def of_sequence(sequence: tuple[Array, ...]) -> Array:
        q, k, weights, starts, ends = sequence

        def one(query: tuple[Array, ...]) -> Array:
            own, weight, start, end = query
            products = jnp.einsum("nh,sh->ns", own, k, preferred_element_type=jnp.float32, precision=precision)
            # A product of such a vector is an internal error of the compiler for TPU 7x (libtpu 0.0.52).
            scores = jnp.sum(jax.nn.relu(products) * weight[:, None], axis=0)
            return jnp.where((token >= start) & (token < end), problem.scale * scores, -jnp.inf)

        return jax.lax.map(one, (q, weights, starts, ends), batch_size=min(config.rows, queries))

    return {"scores": jax.lax.map(of_sequence, (o.q, o.k, o.weights, o.starts, o.ends))}
