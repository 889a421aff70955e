"""Random parts of attention, made on the device; those that saw nothing hold no numbers."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attn_tune.ops.merge_attention.operands import Operands
from attn_tune.ops.merge_attention.problem import Problem

# Kinds of rows at the edges: as usual, one part is empty, all are, all but one are, all weigh the same and next to
# nothing, one outweighs the others by a factor that float32 still has, and by one that it has not.
_KINDS = 7
_MORE, _FAR_MORE, _LITTLE = 30.0, 1e4, -200.0


def make_inputs(problem: Problem, direction: str, seed: int) -> Operands:
    """Inputs of one call, the same for the same seed; may be called under ``jit``.

    Outputs are standard normal; the lse of a part is that of some hundred keys, more or fewer. At the edges the kinds
    of rows take turns, and so does the part that is unlike the others.
    """
    p = problem
    values, logs = jax.random.split(jax.random.key(seed))
    rows = (p.num_rows, p.num_q_heads)
    kind = jnp.arange(p.num_rows * p.num_q_heads).reshape(rows) % _KINDS
    chosen = jnp.arange(p.num_rows * p.num_q_heads).reshape(rows) // _KINDS % p.num_parts
    found: list[Array] = []
    for part in range(p.num_parts):
        out = jax.random.normal(jax.random.fold_in(values, part), (*rows, p.v_head_dim), jnp.dtype(p.dtype))
        lse = 5.0 + 1.5 * jax.random.normal(jax.random.fold_in(logs, part), rows)
        if p.at_edges:
            own = chosen == part
            empty = ((kind == 1) & own) | (kind == 2) | ((kind == 3) & ~own)
            lse = jnp.where(kind == 4, _LITTLE, lse)
            lse += jnp.where(own & (kind == 5), _MORE, 0.0) + jnp.where(own & (kind == 6), _FAR_MORE, 0.0)
            lse = jnp.where(empty, -jnp.inf, lse)
            out = jnp.where(empty[..., None], jnp.nan, out)
        found += [out, lse]
    return Operands(*found)
