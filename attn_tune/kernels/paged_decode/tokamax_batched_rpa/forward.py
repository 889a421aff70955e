"""Decoding as a ragged call in which all sequences have as many queries."""

import jax.numpy as jnp
from jaxtyping import Array

from attn_tune.kernels.lang.pallas_tpu.batched.attend import attend
from attn_tune.kernels.lang.pallas_tpu.batched.config import Config
from attn_tune.ops.paged_decode.operands import Operands
from attn_tune.ops.paged_decode.problem import Problem


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, Array]:
    """``out`` [B, T, N, V] in q's dtype and ``lse`` [B, T, N] in float32."""
    q = operands.q
    batch, q_len = q.shape[:2]
    ends = q_len * jnp.arange(batch + 1, dtype=jnp.int32)
    out, lse = attend(problem, config, operands, q.reshape(-1, *q.shape[2:]), ends, q_len)
    return {"out": out.reshape(q.shape), "lse": lse.reshape(q.shape[:3])}
