"""Merges in plain JAX: elementwise over the parts, without a stack of them, so that XLA makes one fusion of it."""

import functools

import jax.numpy as jnp
from jaxtyping import Array

from attn_tune.kernels.merge_attention.xla.config import Config
from attn_tune.ops.merge_attention.operands import Operands
from attn_tune.ops.merge_attention.problem import Problem


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, Array]:
    """``out`` [rows, N, V] in its dtype and ``lse`` [rows, N] in float32."""
    parts = operands.parts
    maximum = functools.reduce(jnp.maximum, (lse for _, lse in parts))
    shift = jnp.where(jnp.isneginf(maximum), 0.0, maximum)
    weights = [jnp.exp(lse - shift) for _, lse in parts]
    total = sum(weights[1:], weights[0])
    # NaN is above nothing, and must stay.
    none = total == 0
    scale = 1.0 / jnp.where(none, 1.0, total)
    terms = [
        (weight * scale)[..., None] * jnp.where(jnp.isneginf(lse)[..., None], 0.0, out.astype(jnp.float32))
        for weight, (out, lse) in zip(weights, parts, strict=True)
    ]
    lse = jnp.where(none, -jnp.inf, shift + jnp.log(jnp.where(none, 1.0, total)))
    return {"out": sum(terms[1:], terms[0]).astype(problem.merged_dtype), "lse": lse}
