"""The forward: online softmax (arXiv 1805.02867; FlashAttention-2, arXiv 2307.08691) over the pairs of chunks."""

import jax.numpy as jnp
from jaxtyping import Array, Bool

from attn_tune.kernels.block_sparse_attention.xla.chunks import Grid, cut, put
from attn_tune.kernels.lang.xla.chunks import ForwardConfig
from attn_tune.ops.block_sparse_attention.operands import Operands
from attn_tune.ops.block_sparse_attention.problem import Problem

type State = tuple[Array, Array, Array]


def forward(problem: Problem, config: ForwardConfig, operands: Operands) -> dict[str, Array]:
    """``{"out": [B, T, N, V] in the dtype of q, "lse": [B, N, T] float32}``; memory is O(T + S)."""
    p = problem
    grid = Grid.of(p, config)
    side = grid.prepare(operands)

    def step(carry: State, i: Array, j: Array, visible: Bool[Array, "..."]) -> State:
        start, column = i * grid.q, j * grid.k
        peak, total, acc = (cut(x, 3, start, grid.q) for x in carry)
        k, v = cut(side.k, 2, column, grid.k), cut(side.v, 2, column, grid.k)
        logits, _ = grid.logits(cut(side.q, 3, start, grid.q), k, visible)
        new_peak = jnp.maximum(peak, jnp.max(logits, axis=-1))
        # A row that has seen nothing yet: exp(-inf - 0) is 0, exp(-inf + inf) would be NaN.
        base = jnp.where(jnp.isneginf(new_peak), 0.0, new_peak)
        shrink = jnp.exp(peak - base)
        weights = jnp.exp(logits - base[..., None])
        total = total * shrink + jnp.sum(weights, axis=-1)
        acc = acc * shrink[..., None] + grid.matmul("bkgts,bksv->bkgtv", weights.astype(v.dtype), v)
        peaks, totals, accs = (put(x, 3, start, new) for x, new in zip(carry, (new_peak, total, acc), strict=True))
        return peaks, totals, accs

    rows = side.q.shape[:4]
    start = (
        jnp.full(rows, -jnp.inf, jnp.float32),
        jnp.zeros(rows, jnp.float32),
        jnp.zeros((*rows, p.v_head_dim), jnp.float32),
    )
    peak, total, acc = grid.walk(side, start, step)
    seen = total > 0
    safe = jnp.where(seen, total, 1.0)
    out = grid.ungrouped((acc * jnp.where(seen, 1.0 / safe, 0.0)[..., None]).astype(operands.q.dtype))
    lse = jnp.where(seen, peak + jnp.log(safe), -jnp.inf)
    return {"out": out, "lse": lse[..., : p.q_len].reshape(p.batch, p.num_q_heads, p.q_len)}
