"""Decoding in plain JAX: all sequences walk their keys together, gathered from their pages."""

import jax.numpy as jnp
from jaxtyping import Array

from attn_tune.kernels.lang.cache import attend
from attn_tune.kernels.paged_decode.xla.config import Config
from attn_tune.ops.fields.cache import sizes_of
from attn_tune.ops.paged_decode.operands import Operands
from attn_tune.ops.paged_decode.problem import Problem


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, Array]:
    """``out`` [B, T, N, V] in q's dtype and ``lse`` [B, T, N] in float32."""
    p, o = problem, operands
    batch, q_len = o.q.shape[:2]
    capacity = sizes_of(p.layout, o.k.shape)["slot"] * (1 if o.page_table is None else o.page_table.shape[1])
    lengths = jnp.clip(o.kv_lens, 0, capacity)
    lowest = jnp.zeros_like(lengths) if p.window is None else jnp.maximum(lengths - q_len - p.window, 0)
    position = lengths[:, None] - q_len + jnp.arange(q_len)
    out, lse = attend(p, o, config.step, o.q, jnp.arange(batch), position, lowest)
    return {"out": out, "lse": lse}
