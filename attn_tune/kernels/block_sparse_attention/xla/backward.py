"""The backward: one scan over the pairs of chunks recomputes the weights (FlashAttention-2, algorithm 2)."""

import jax.numpy as jnp
from jaxtyping import Array, Bool

from attn_tune.kernels.block_sparse_attention.xla.chunks import Grid, add, cut
from attn_tune.kernels.lang.xla.chunks import BackwardConfig
from attn_tune.ops.block_sparse_attention.operands import BackwardInputs
from attn_tune.ops.block_sparse_attention.problem import Problem

type Sums = tuple[Array, Array, Array]


def backward(problem: Problem, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, Array]:
    """``dq``, ``dk``, ``dv``, each like its primal, accumulated in float32."""
    p, o = problem, inputs.operands
    grid = Grid.of(p, config)
    side = grid.prepare(o)
    dout_rows = grid.grouped(inputs.dout)
    # exp(logit - inf) is 0: fully masked rows, and the rows of the padding, have no gradient.
    lse = jnp.where(jnp.isneginf(inputs.residuals.lse), jnp.inf, inputs.residuals.lse)
    lse_rows, delta_rows = grid.grouped_rows(lse, jnp.inf), grid.grouped_rows(inputs.delta, 0.0)

    def step(carry: Sums, i: Array, j: Array, visible: Bool[Array, "..."]) -> Sums:
        row, column = i * grid.q, j * grid.k
        q, dout, lse, delta = (cut(x, 3, row, grid.q) for x in (side.q, dout_rows, lse_rows, delta_rows))
        k, v = cut(side.k, 2, column, grid.k), cut(side.v, 2, column, grid.k)
        logits, capped = grid.logits(q, k, visible)
        weights = jnp.exp(logits - lse[..., None])
        d_logits = weights * (grid.matmul("bkgtv,bksv->bkgts", dout, v) - delta[..., None])
        if p.soft_cap is not None:
            d_logits = d_logits * (1.0 - jnp.square(capped / p.soft_cap))
        d_logits = d_logits.astype(q.dtype)
        dq, dk, dv = carry
        return (
            add(dq, 3, row, grid.matmul("bkgts,bksh->bkgth", d_logits, k)),
            add(dk, 2, column, grid.matmul("bkgts,bkgth->bksh", d_logits, q)),
            add(dv, 2, column, grid.matmul("bkgts,bkgtv->bksv", weights.astype(v.dtype), dout)),
        )

    zeros = tuple(jnp.zeros(x.shape, jnp.float32) for x in (side.q, side.k, side.v))
    dq, dk, dv = grid.walk(side, (zeros[0], zeros[1], zeros[2]), step)
    return {
        "dq": grid.ungrouped((p.scale * dq).astype(o.q.dtype)),
        "dk": (p.scale * dk[:, :, : p.kv_len]).swapaxes(1, 2).astype(o.k.dtype),
        "dv": dv[:, :, : p.kv_len].swapaxes(1, 2).astype(o.v.dtype),
    }
