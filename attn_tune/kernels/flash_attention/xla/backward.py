"""The backward: one scan over the visible chunk pairs recomputes the weights and adds to every gradient.

FlashAttention-2 (arXiv 2307.08691), algorithm 2, with both outer loops folded into one.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from attn_tune.kernels.flash_attention.xla.chunks import (
    Grid,
    add,
    cut,
    from_groups,
    matmul,
    prepare,
    rows_to_groups,
    tile,
    to_groups,
)
from attn_tune.kernels.lang.xla.chunks import BackwardConfig
from attn_tune.ops.flash_attention.operands import BackwardInputs
from attn_tune.ops.flash_attention.problem import Problem


def backward(problem: Problem, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, Array]:
    """Gradients ``dq``, ``dk``, ``dv``, and ``dbias`` when there is a bias, each like its primal.

    All are accumulated in float32. A gradient that the caller drops costs nothing under ``jit``.
    """
    p, o = problem, inputs.operands
    grid = Grid.of(p, config.chunk_q, config.chunk_k)
    side = prepare(grid, o)
    all_dout = to_groups(grid, inputs.dout)
    # exp(logit - inf) is 0: fully masked rows, and the rows of the padding, have no gradient.
    lse = jnp.where(jnp.isneginf(inputs.residuals.lse), jnp.inf, inputs.residuals.lse)
    all_lse = rows_to_groups(grid, lse, fill=jnp.inf)
    all_delta = rows_to_groups(grid, inputs.delta, fill=0.0)

    def step(carry, pair):
        i, j = pair[0], pair[1]
        row, col = i * grid.q, j * grid.k
        q, dout, lse, delta = (cut(x, 3, row, grid.q) for x in (side.q, all_dout, all_lse, all_delta))
        k, v = cut(side.k, 2, col, grid.k), cut(side.v, 2, col, grid.k)
        t = tile(grid, side, q, k, i, j)
        weights = jnp.exp(t.logits - lse[..., None])
        dropped, d_weights = weights, matmul(p, "bkgtv,bksv->bkgts", dout, v)
        if t.keep is not None:
            kept = jnp.where(t.keep, 1.0 / (1.0 - p.dropout_rate), 0.0)
            dropped, d_weights = weights * kept, d_weights * kept
        d_logits = weights * (d_weights - delta[..., None])
        carry = dict(carry)
        carry["dv"] = add(carry["dv"], 2, col, matmul(p, "bkgts,bkgtv->bksv", dropped.astype(v.dtype), dout))
        if p.bias_dims is not None:
            carry["dbias"] = _add_dbias(grid, carry["dbias"], d_logits, i, j)
        if p.soft_cap is not None:
            d_logits = d_logits * (1.0 - jnp.square(t.capped / p.soft_cap))
        d_logits = d_logits.astype(q.dtype)
        carry["dq"] = add(carry["dq"], 3, row, matmul(p, "bkgts,bksh->bkgth", d_logits, k))
        carry["dk"] = add(carry["dk"], 2, col, matmul(p, "bkgts,bkgth->bksh", d_logits, q))
        return carry, None

    init = {
        "dq": jnp.zeros(side.q.shape, jnp.float32),
        "dk": jnp.zeros(side.k.shape, jnp.float32),
        "dv": jnp.zeros(side.v.shape, jnp.float32),
    }
    if side.bias is not None:
        init["dbias"] = jnp.zeros(side.bias.shape, jnp.float32)
    grads, _ = lax.scan(step, init, jnp.asarray(grid.visible_pairs))
    outputs = {
        "dq": from_groups(grid, (p.scale * grads["dq"]).astype(o.q.dtype)),
        "dk": (p.scale * grads["dk"][:, :, : p.kv_len]).swapaxes(1, 2).astype(o.k.dtype),
        "dv": grads["dv"][:, :, : p.kv_len].swapaxes(1, 2).astype(o.v.dtype),
    }
    if o.bias is not None:
        _, _, t, s = o.bias.shape
        outputs["dbias"] = grads["dbias"][..., :t, :s].reshape(o.bias.shape).astype(o.bias.dtype)
    return outputs


def _add_dbias(grid: Grid, dbias: Array, d_logits: Array, i: Array, j: Array) -> Array:
    dims = grid.problem.bias_dims or "1111"
    summed = tuple(axis for axis, dim in enumerate((dims[0], dims[1], dims[1], *dims[2:])) if dim == "1")
    update = jnp.sum(d_logits, axis=summed, keepdims=True) if summed else d_logits
    # Of one type, whether or not Python integers are 64-bit in this process.
    zero = jnp.zeros_like(i)
    row = i * grid.q if dims[2] == "t" else zero
    at = (zero, zero, zero, row, j * grid.k if dims[3] == "s" else zero)
    old = lax.dynamic_slice(dbias, at, update.shape)
    return lax.dynamic_update_slice(dbias, old + update, at)
