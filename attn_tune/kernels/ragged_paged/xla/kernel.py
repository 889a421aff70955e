"""Ragged attention in plain JAX: tiles of queries of one sequence each, some of which walk their keys together."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from attn_tune.kernels.lang.cache import attend, zero_like
from attn_tune.kernels.lang.query_codes import dequantised
from attn_tune.kernels.ragged_paged.xla.config import Config
from attn_tune.ops.fields.cache import sizes_of
from attn_tune.ops.ragged_paged.operands import Operands
from attn_tune.ops.ragged_paged.problem import Problem

type Outputs = tuple[Array, Array]


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, Array]:
    """``out`` [tokens, N, V] in the problem's dtype and ``lse`` [tokens, N] in float32."""
    p, o = problem, dequantised(problem, operands)
    tokens, num_q_heads, _ = o.q.shape
    capacity = sizes_of(p.layout, o.k.shape)["slot"] * (1 if o.page_table is None else o.page_table.shape[1])
    lengths = jnp.clip(o.kv_lens, 0, capacity)
    begins, ends = o.cu_q_lens[:-1], o.cu_q_lens[1:]
    last_tiles = jnp.cumsum(-(-(ends - begins) // config.block_q))

    def some(index: Int[Array, ""], outputs: Outputs) -> Outputs:
        """The outputs with those of ``config.tiles`` tiles."""
        tile = index * config.tiles + jnp.arange(config.tiles, dtype=jnp.int32)
        sequence = jnp.minimum(
            jnp.searchsorted(last_tiles, tile, side="right", method="scan_unrolled"), lengths.shape[0] - 1
        )
        own = tile - jnp.where(sequence > 0, last_tiles[sequence - 1], 0)
        first = begins[sequence] + own * config.block_q
        row = first[:, None] + jnp.arange(config.block_q, dtype=jnp.int32)
        is_row = (row < ends[sequence][:, None]) & (tile < last_tiles[-1])[:, None]
        # The last query of a sequence stands at its last token.
        shift = lengths[sequence] - ends[sequence]
        # Of a call that is not causal all do.
        position = row + shift[:, None] if p.causal else (lengths[sequence] - 1)[:, None]
        position = jnp.where(is_row, position, -1)
        lowest = jnp.zeros_like(first) if p.window is None else jnp.maximum(first + shift - p.window, 0)
        q = jnp.where(is_row[..., None, None], o.q[jnp.minimum(row, tokens - 1)], 0)
        out, lse = attend(p, o, config.step, q, sequence, position, lowest)
        # Rows of no tile go to a place that does not exist.
        place = jnp.where(is_row, row, tokens)
        return outputs[0].at[place].set(out, mode="drop"), outputs[1].at[place].set(lse, mode="drop")

    like = zero_like(o.q)
    zero = jnp.zeros((tokens, num_q_heads, p.v_head_dim), o.q.dtype) + like.astype(o.q.dtype)
    unseen = jnp.full((tokens, num_q_heads), -jnp.inf) + like
    out, lse = jax.lax.fori_loop(0, -(-last_tiles[-1] // config.tiles), some, (zero, unseen))
    return {"out": out, "lse": lse}
