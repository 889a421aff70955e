"""Ragged attention over tokamax's kernel: what an op asks for and the kernel does not do by itself."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_tune.kernels.lang.pallas_tpu.batched.config import Config
from attn_tune.kernels.lang.pallas_tpu.batched.launch import launch
from attn_tune.kernels.lang.pallas_tpu.window_edges import cut, finished
from attn_tune.ops.fields.cache import SAME


def attend(
    problem: Any, config: Config, operands: Any, q: Float[Array, "tokens N H"], ends: Int[Array, " ends"], longest: int
) -> tuple[Float[Array, "tokens N H"], Float[Array, "tokens N"]]:
    """The output in q's dtype and the natural lse in float32; zero and minus infinity, or the sink, where nothing is.

    Args:
      operands: the cache, its table, lengths and scales, and the sinks.
      q: the queries of all sequences, and padding.
      ends: the first query of each sequence, and the end of the last one.
      longest: the most queries that a sequence has.
    """
    p, o = problem, operands
    pages = cut(p, o, ends)
    is_scaled = p.kv_dtype != SAME and o.k_scale is not None
    out, lse = launch(
        config,
        q,
        o.k,
        jnp.maximum(pages.lengths, 0),
        pages.table,
        ends.astype(jnp.int32),
        o.k_scale if is_scaled else None,
        scale=p.scale,
        window=None if p.window is None else p.window + 1,
        soft_cap=p.soft_cap,
    )
    if is_scaled:
        out = out * o.v_scale.astype(jnp.float32)
    out, lse = finished(p, o, q, ends, longest, pages, (out, lse))
    return out.astype(q.dtype), lse
