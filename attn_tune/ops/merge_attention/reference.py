"""Merging parts of attention: ``out = sum_i out_i exp(lse_i - lse)``, with ``lse = log(sum_i exp(lse_i))``.

Each output is a mean of values, weighed by a softmax over a part of the keys, and its lse is the logarithm of that
softmax's denominator (FlashAttention-2, arXiv 2307.08691, section 2.3; Hydragen, arXiv 2402.05099, section 3.1). A part
whose lse is minus infinity counts for nothing; where all are, the output is zero and the lse minus infinity.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attn_tune.ops.merge_attention.operands import Operands
from attn_tune.ops.merge_attention.problem import Problem


def reference(problem: Problem, direction: str, operands: Operands) -> dict[str, Array]:
    """``out`` [rows, N, V] and ``lse`` [rows, N], both in float32."""
    return _merge(operands, jnp.dtype(jnp.float32))


def baseline(problem: Problem, direction: str, operands: Operands) -> dict[str, Array]:
    """The same, the output in its own dtype; it is differentiated, and rows that saw nothing have zero gradients."""
    return _merge(operands, jnp.dtype(problem.merged_dtype))


def _merge(operands: Operands, dtype: jnp.dtype) -> dict[str, Array]:
    outs = jnp.stack([out.astype(jnp.float32) for out, _ in operands.parts])
    logs = jnp.stack([lse for _, lse in operands.parts])
    counts = ~jnp.isneginf(logs)
    some = jnp.any(counts, axis=0)
    # Where no part counts, derivatives of the softmax are not numbers, which no product with zero removes.
    logs = jnp.where(some, logs, 0.0)
    weights = jnp.where(counts, jax.nn.softmax(logs, axis=0), 0.0)
    out = jnp.sum(weights[..., None] * jnp.where(counts[..., None], outs, 0.0), axis=0)
    lse = jnp.where(some, jax.nn.logsumexp(logs, axis=0), -jnp.inf)
    return {"out": out.astype(dtype), "lse": lse}
