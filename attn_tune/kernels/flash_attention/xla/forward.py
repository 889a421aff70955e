"""The forward: online softmax (arXiv 1805.02867; FlashAttention-2, arXiv 2307.08691) over the visible chunk pairs."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from attn_tune.kernels.flash_attention.xla.chunks import (
    Grid,
    cut,
    from_groups,
    matmul,
    prepare,
    put,
    tile,
)
from attn_tune.kernels.lang.xla.chunks import ForwardConfig
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem


def forward(problem: Problem, config: ForwardConfig, operands: Operands) -> dict[str, Array]:
    """``{"out": [B, T, N, V] in the dtype of q, "lse": [B, N, T] float32}``; memory is O(T + S)."""
    p = problem
    grid = Grid.of(p, config.chunk_q, config.chunk_k)
    side = prepare(grid, operands)

    def step(carry, pair):
        i, j = pair[0], pair[1]
        start = i * grid.q
        peak, total, acc = (cut(x, 3, start, grid.q) for x in carry)
        t = tile(grid, side, cut(side.q, 3, start, grid.q), cut(side.k, 2, j * grid.k, grid.k), i, j)
        new_peak = jnp.maximum(peak, jnp.max(t.logits, axis=-1))
        # A row that has seen nothing yet: exp(-inf - 0) is 0, exp(-inf + inf) would be NaN.
        base = jnp.where(jnp.isneginf(new_peak), 0.0, new_peak)
        shrink = jnp.exp(peak - base)
        weights = jnp.exp(t.logits - base[..., None])
        total = total * shrink + jnp.sum(weights, axis=-1)
        if t.keep is not None:
            weights = jnp.where(t.keep, weights, 0.0)
        v = cut(side.v, 2, j * grid.k, grid.k)
        acc = acc * shrink[..., None] + matmul(p, "bkgts,bksv->bkgtv", weights.astype(v.dtype), v)
        carry = tuple(put(x, 3, start, new) for x, new in zip(carry, (new_peak, total, acc), strict=True))
        return carry, None

    (peak, total, acc), _ = lax.scan(step, _start(grid, operands), jnp.asarray(grid.visible_pairs))
    seen = total > 0
    # Dropped weights stay in the denominator; the kept ones grow.
    share = jnp.where(seen, 1.0 / (jnp.where(seen, total, 1.0) * (1.0 - p.dropout_rate)), 0.0)
    lse = jnp.where(seen, peak + jnp.log(jnp.where(seen, total, 1.0)), -jnp.inf)
    out = from_groups(grid, (acc * share[..., None]).astype(operands.q.dtype))
    lse = lse[..., : p.q_len].reshape(p.batch, p.num_q_heads, p.q_len)
    return {"out": out, "lse": lse}


def _start(grid: Grid, operands: Operands) -> tuple[Array, Array, Array]:
    # A sink is one more logit, seen before any key: it enters here once, whatever the chunks.
    p = grid.problem
    rows = (p.batch, p.num_kv_heads, p.group_size, p.q_len + grid.q_padding)
    acc = jnp.zeros((*rows, p.v_head_dim), jnp.float32)
    if operands.sinks is None:
        return jnp.full(rows, -jnp.inf, jnp.float32), jnp.zeros(rows, jnp.float32), acc
    sink = operands.sinks.astype(jnp.float32).reshape(1, p.num_kv_heads, p.group_size, 1)
    peak = jnp.broadcast_to(sink, rows)
    return peak, jnp.where(jnp.isneginf(peak), 0.0, 1.0).astype(jnp.float32), acc
