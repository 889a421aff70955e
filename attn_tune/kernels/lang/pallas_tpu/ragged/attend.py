"""Ragged attention over JAX's kernel: what an op asks for and the kernel does not do by itself.

The kernel wants at least one token of every sequence and a query of the last one, and reads all pages of a sequence
from the first: those before its window are cut from its table.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_tune.kernels.lang.pallas_tpu.ragged.config import Config
from attn_tune.kernels.lang.pallas_tpu.ragged.launch import launch
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
    pages, new = cut(p, o, ends), ends[1:] - ends[:-1]
    # A sequence without queries, or with nothing to see, takes one block, of which nothing is used.
    given = jnp.where(new > 0, jnp.maximum(pages.lengths, 1), 1)
    # Behind the last sequence with queries the kernel would start copies that nothing waits for; before the first one
    # too, if there is none.
    count = jnp.max(jnp.where(new > 0, jnp.arange(1, new.shape[0] + 1), 1))
    given_ends = jnp.where(ends[-1] > 0, ends, (jnp.arange(ends.shape[0]) > 0).astype(ends.dtype))
    kernel = launch(
        config,
        q,
        o.k,
        given.astype(jnp.int32),
        pages.table,
        given_ends.astype(jnp.int32),
        count.astype(jnp.int32)[None],
        _scales(p, o),
        scale=p.scale,
        window=None if p.window is None else p.window + 1,
        soft_cap=p.soft_cap,
    )
    return finished(p, o, q, ends, longest, pages, kernel)


def _scales(p: Any, o: Any) -> Float[Array, " two"] | None:
    if p.kv_dtype == SAME:
        return None
    return jnp.ones(2) if o.k_scale is None else jnp.stack([o.k_scale, o.v_scale]).astype(jnp.float32)
