"""Ragged attention in plain JAX: tiles of queries with an online softmax over steps of gathered keys."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from attn_tune.kernels.lang.cache import gathered
from attn_tune.kernels.ragged_paged.xla.config import Config
from attn_tune.ops.fields.cache import sizes_of
from attn_tune.ops.ragged_paged.operands import Operands
from attn_tune.ops.ragged_paged.problem import Problem

type State = tuple[Array, Array, Array]


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, Array]:
    """``out`` [tokens, N, V] in q's dtype and ``lse`` [tokens, N] in float32."""
    p, o = problem, operands
    sizes = sizes_of(p.layout, o.k.shape)
    tokens, num_q_heads, head_dim = o.q.shape
    kv_heads, group = sizes["head"], num_q_heads // sizes["head"]
    width = head_dim if o.v is None else o.v.shape[-1]
    capacity = sizes["slot"] * (1 if o.page_table is None else o.page_table.shape[1])
    batch = o.kv_lens.shape[0]
    lengths = jnp.clip(o.kv_lens, 0, capacity)
    begins, ends = o.cu_q_lens[:-1], o.cu_q_lens[1:]
    last_tiles = jnp.cumsum(-(-(ends - begins) // config.block_q))
    precision = "highest" if o.q.dtype == jnp.float32 else None
    # A zero that varies as the queries do: under shard_map a loop keeps the types that it starts with.
    like = 0.0 * jnp.where(jnp.isfinite(o.q[:1, :1, :1]), o.q[:1, :1, :1], 0).astype(jnp.float32).sum()

    def tiles(index: Int[Array, ""], outputs: tuple[Array, Array]) -> tuple[Array, Array]:
        """The outputs with those of some tiles."""
        tile = index * config.tiles + jnp.arange(config.tiles)
        sequence = jnp.minimum(jnp.searchsorted(last_tiles, tile, side="right"), batch - 1)
        own = tile - jnp.where(sequence > 0, last_tiles[sequence - 1], 0)
        first = begins[sequence] + own * config.block_q
        row = first[:, None] + jnp.arange(config.block_q)
        is_row = (row < ends[sequence][:, None]) & (tile < last_tiles[-1])[:, None]
        shift = lengths[sequence] - ends[sequence]
        position = jnp.where(is_row, row + shift[:, None], -1)
        lowest = jnp.zeros_like(first) if p.window is None else jnp.maximum(first + shift - p.window, 0)
        highest = jnp.max(position, axis=1) + 1
        q = jnp.where(is_row[..., None, None], o.q[jnp.minimum(row, tokens - 1)], 0)
        q = q.reshape(*row.shape, kv_heads, group, head_dim)

        def step(i: Int[Array, ""], state: State) -> State:
            acc, total, maximum = state
            token = i * config.step + jnp.arange(config.step)
            counts = (token < highest[:, None]) & (token >= lowest[:, None])
            k, v, k_scale, v_scale = gathered(p, o, sequence, token, counts)
            logits = jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32, precision=precision)
            logits *= p.scale if k_scale is None else p.scale * k_scale
            if p.soft_cap is not None:
                logits = p.soft_cap * jnp.tanh(logits / p.soft_cap)
            visible = token <= position[..., None]
            if p.window is not None:
                visible &= token >= position[..., None] - p.window
            logits = jnp.where(visible[:, None, None], logits, -jnp.inf)
            new_maximum = jnp.maximum(maximum, jnp.max(logits, axis=-1))
            finite = jnp.where(jnp.isneginf(new_maximum), 0.0, new_maximum)
            weights = jnp.exp(logits - finite[..., None])
            correction = jnp.exp(maximum - finite)
            total = total * correction + jnp.sum(weights, axis=-1)
            if v_scale is not None:
                weights = weights * v_scale
            product = jnp.einsum(
                "bkgts,bskv->bkgtv", weights.astype(v.dtype), v, preferred_element_type=jnp.float32, precision=precision
            )
            return acc * correction[..., None] + product, total, new_maximum

        rows = (config.tiles, kv_heads, group, config.block_q)
        maximum = jnp.full(rows, -jnp.inf)
        if o.sinks is not None:
            maximum = jnp.broadcast_to(o.sinks.reshape(1, kv_heads, group, 1), rows)
        total = jnp.where(jnp.isneginf(maximum), 0.0, 1.0)
        start = (jnp.zeros((*rows, width)) + like, total + like, maximum + like)
        begin, end = (
            jnp.min(jnp.where(highest > 0, lowest, capacity)) // config.step,
            -(-jnp.max(highest) // config.step),
        )
        acc, total, maximum = jax.lax.fori_loop(begin, end, step, start)
        seen = total > 0
        out = (acc / jnp.where(seen, total, 1.0)[..., None]).transpose(0, 3, 1, 2, 4)
        lse = jnp.where(seen, maximum + jnp.log(jnp.where(seen, total, 1.0)), -jnp.inf).transpose(0, 3, 1, 2)
        # Rows of no tile go to a place that does not exist.
        place = jnp.where(is_row, row, tokens)
        out = out.reshape(*row.shape, num_q_heads, width).astype(o.q.dtype)
        all_out = outputs[0].at[place].set(out, mode="drop")
        return all_out, outputs[1].at[place].set(lse.reshape(*row.shape, num_q_heads), mode="drop")

    zero = jnp.zeros((tokens, num_q_heads, width), o.q.dtype) + like.astype(o.q.dtype)
    empty = jnp.full((tokens, num_q_heads), -jnp.inf) + like
    out, lse = jax.lax.fori_loop(0, -(-last_tiles[-1] // config.tiles), tiles, (zero, empty))
    return {"out": out, "lse": lse}
