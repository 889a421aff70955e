"""Random data for one ragged call, made on the device: caches whose unused parts are poisoned, and padding."""

import jax
import jax.numpy as jnp

from attn_tune.ops.fields.cache_inputs import draw_cache, draw_query_codes, draw_sinks
from attn_tune.ops.ragged_paged.operands import Operands
from attn_tune.ops.ragged_paged.problem import Problem


def make_inputs(problem: Problem, direction: str, seed: int) -> Operands:
    """Inputs of one call, the same for the same seed; may be called under ``jit``.

    Queries are standard normal, or codes of such numbers; those of no sequence are NaN (of int8 any code). Sequences
    have the workload's lengths in random order, those with one new token before all others. All of the cache that no
    query sees is poisoned (``draw_cache``).
    """
    p = problem
    keys = jax.random.split(jax.random.key(seed), 8)
    new, given = jnp.asarray(p.given_sequences, jnp.int32).T
    if not p.at_edges:
        order = jax.random.permutation(keys[0], p.batch)
        order = order[jnp.argsort(new[order] != 1, stable=True)]
        new, given = new[order], given[order]
    lengths = jnp.clip(given, 0, p.input_capacity)
    ends = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(new, dtype=jnp.int32)])
    first = jnp.zeros_like(lengths) if p.window is None else lengths - new - p.window
    q = jax.random.normal(keys[1], (p.tokens, p.num_q_heads, p.head_dim))
    is_own = jnp.arange(p.tokens) < ends[-1]
    if p.q_scale == "none":
        q, q_scale = jnp.where(is_own[:, None, None], q, jnp.nan).astype(p.dtype), None
    else:
        q, q_scale = draw_query_codes(p, jax.random.fold_in(keys[1], 1), q, is_own)
    return Operands(
        q=q,
        kv_lens=given,
        cu_q_lens=ends,
        sinks=draw_sinks(p, keys[2]) if p.has_sinks else None,
        q_scale=q_scale,
        **draw_cache(p, keys[3:], lengths, jnp.where(new > 0, first, lengths), seed=seed),
    )
