"""Random data for one decoding call, made on the device: caches whose unused parts are poisoned."""

import jax
import jax.numpy as jnp

from attn_tune.ops.fields.cache_inputs import draw_cache, draw_sinks
from attn_tune.ops.paged_decode.operands import Operands
from attn_tune.ops.paged_decode.problem import Problem


def make_inputs(problem: Problem, direction: str, seed: int) -> Operands:
    """Inputs of one call, the same for the same seed; may be called under ``jit``.

    Queries are standard normal, sequences have the workload's lengths in random order, and all of the cache that no
    query sees is poisoned (``draw_cache``).
    """
    p = problem
    keys = jax.random.split(jax.random.key(seed), 8)
    given = jax.random.permutation(keys[0], jnp.asarray(p.given_lengths, jnp.int32))
    lengths = jnp.clip(given, 0, p.input_capacity)
    first = jnp.zeros_like(lengths) if p.window is None else lengths - p.q_len - p.window
    return Operands(
        q=jax.random.normal(keys[1], (p.batch, p.q_len, p.num_q_heads, p.head_dim)).astype(p.dtype),
        kv_lens=given,
        sinks=draw_sinks(p, keys[2]) if p.has_sinks else None,
        **draw_cache(p, keys[3:], lengths, first, seed=seed),
    )
