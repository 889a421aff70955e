"""Attention of one sequence after the other: in float32 as the reference, in the working dtype as the baseline."""

# JAX declares no types of some functions that stand here.
# pyright: reportUnknownMemberType=false

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from attn_tune.ops.fields.cache_sequence import attend, sequence_of
from attn_tune.ops.ragged_paged.operands import Operands
from attn_tune.ops.ragged_paged.problem import Problem
from attn_tune.ops.typed_jax import fori_loop

# Queries at a time, so that logits of long sequences fit the memory.
_TILE = 64

type Rows = tuple[Array, Array]


def reference(problem: Problem, direction: str, operands: Operands) -> dict[str, Array]:
    """``out`` [tokens, N, V] and ``lse`` [tokens, N], all in float32 and at the highest precision."""
    return _attend(problem, operands, jnp.dtype(jnp.float32))


def baseline(problem: Problem, direction: str, operands: Operands) -> dict[str, Array]:
    """The same in the output's dtype: codes are dequantised to it, weights rounded to it; logits are float32."""
    return _attend(problem, operands, jnp.dtype(problem.dtype))


def _attend(p: Problem, o: Operands, dtype: jnp.dtype) -> dict[str, Array]:
    q = o.q
    if o.q_scale is not None:
        q = q.astype(jnp.float32) * (o.q_scale if p.q_scale == "tensor" else o.q_scale[..., None])
    # The last tile may go beyond the last query.
    padded = jnp.pad(q, [(0, _TILE), (0, 0), (0, 0)])

    def of_sequence(index: Int[Array, ""], rows: Rows) -> Rows:
        begin, end = o.cu_q_lens[index], o.cu_q_lens[index + 1]
        k, v = sequence_of(p, o, index, dtype)
        length = jnp.clip(o.kv_lens[index], 0, k.shape[0])
        token = jnp.arange(k.shape[0])

        def of_tile(tile: Int[Array, ""], rows: Rows) -> Rows:
            first = begin + tile * _TILE
            query = first + jnp.arange(_TILE)
            is_own = query < end
            # The last query of a sequence stands at its last token; of a call that is not causal all do.
            position = jnp.where(p.causal, length - end + query, length - 1)[:, None]
            visible = (token <= position) & (token < length) & is_own[:, None]
            if p.window is not None:
                visible &= token >= position - p.window
            out, lse = attend(p, o.sinks, jax.lax.dynamic_slice_in_dim(padded, first, _TILE), k, v, visible)
            return _written(rows[0], out, first, is_own), _written(rows[1], lse, first, is_own)

        return fori_loop(0, -(-(end - begin) // _TILE), of_tile, rows)

    tokens = padded.shape[0]
    start = (jnp.zeros((tokens, p.num_q_heads, p.v_head_dim)), jnp.full((tokens, p.num_q_heads), -jnp.inf))
    out, lse = fori_loop(0, o.kv_lens.shape[0], of_sequence, start)
    return {"out": out[:-_TILE].astype(dtype), "lse": lse[:-_TILE]}


def _written(x: Array, new: Array, first: Int[Array, ""], is_own: Array) -> Array:
    """``x`` with those of the rows from ``first`` on that are a tile's own."""
    old = jax.lax.dynamic_slice_in_dim(x, first, _TILE)
    rows = jnp.where(is_own.reshape(-1, *[1] * (x.ndim - 1)), new, old)
    return jax.lax.dynamic_update_slice_in_dim(x, rows, first, 0)
