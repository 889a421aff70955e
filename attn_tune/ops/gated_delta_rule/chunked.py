"""The gated delta rule of long sequences in high precision: chunk by chunk.

Token by token a GPU takes seconds for what this takes milliseconds. A test compares the two.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from attn_tune.ops.gated_delta_rule.operands import Operands
from attn_tune.ops.gated_delta_rule.problem import Problem

CHUNK = 64

type Rounding = Callable[[Array], Array]


def forward_in_chunks(
    p: Problem, o: Operands, dtype: jnp.dtype, rounded: Rounding
) -> tuple[Float[Array, "B T N V"], Float[Array, "B N H V"]]:
    """The outputs of all tokens and the final states of a call that is not ragged.

    Args:
      dtype: of the computation.
      rounded: of states, updates and weights, before they enter a product.
    """
    numbers = (*p.rows, p.num_value_heads)
    g = jnp.zeros(numbers, dtype) if o.g is None else o.g
    beta = jnp.ones(numbers, dtype) if o.beta is None else o.beta
    q, k = (jnp.repeat(x, p.group_size, axis=2) for x in (o.q, o.k))
    # Tokens behind the last one change nothing.
    padding = -p.length % CHUNK

    def cut(x: Array) -> Array:
        x = jnp.pad(x.astype(dtype), ((0, 0), (0, padding), *[(0, 0)] * (x.ndim - 2)))
        x = x.reshape(p.batch, -1, CHUNK, *x.shape[2:])
        return jnp.moveaxis(x, (1, 3), (0, 2))

    states = (p.batch, p.num_value_heads, p.head_dim, p.v_head_dim)
    start = jnp.zeros(states, dtype) if o.initial_state is None else o.initial_state.astype(dtype)
    chunks = tuple(cut(x) for x in (q, k, o.v, g, beta))
    solved = _inverse(_system(chunks[1], *chunks[3:]))
    state, out = lax.scan(jax.checkpoint(partial(_chunk, p, rounded)), start, (*chunks, solved))
    out = jnp.moveaxis(out, (0, 2), (1, 3))
    return out.reshape(p.batch, -1, *out.shape[3:])[:, : p.length], state


def _chunk(p: Problem, rounded: Rounding, state: Array, tokens: tuple[Array, ...]) -> tuple[Array, Array]:
    """The state after one chunk, and its outputs ``[B, N, C, V]``."""
    q, k, v, g, beta, solved = tokens
    decays = _decays(g)
    since_start = jnp.exp(jnp.cumsum(g, axis=-1))[..., None]
    until_end = decays[..., -1, :, None]
    before = rounded(state)
    known = since_start * _product("bnch,bnhv->bncv", k, before)
    update = rounded(_product("bnij,bnjv->bniv", solved, beta[..., None] * (v - known)))
    weights = rounded(decays * _product("bnih,bnjh->bnij", q, k))
    out = since_start * _product("bnch,bnhv->bncv", q, before) + _product("bnij,bnjv->bniv", weights, update)
    state = since_start[..., -1:, :] * state + _product("bnch,bncv->bnhv", until_end * k, update)
    return state, p.scale * out


def _system(k: Array, g: Array, beta: Array) -> Array:
    """By what the updates of a chunk depend on those before them: strictly lower triangular."""
    return jnp.tril(beta[..., None] * _decays(g) * _product("...ih,...jh->...ij", k, k), -1)


def _decays(g: Float[Array, "*chunks C"]) -> Float[Array, "*chunks C C"]:
    """Row i, column j: the product of the gates behind token j up to token i, whose logarithms are added one by one."""
    causal = jnp.tril(jnp.ones((CHUNK, CHUNK), bool))
    spans = jnp.cumsum(jnp.where(jnp.tril(causal, -1), g[..., :, None], 0.0), axis=-2)
    return jnp.where(causal, jnp.exp(spans), 0.0)


@jax.custom_vjp
def _inverse(lower: Float[Array, "*chunks C C"]) -> Float[Array, "*chunks C C"]:
    """The inverse of ``I + lower``, row by row."""
    rows = jnp.eye(CHUNK, dtype=lower.dtype)

    def row(i: Array, found: Array) -> Array:
        line = lax.dynamic_index_in_dim(lower, i, lower.ndim - 2, keepdims=False)
        new = rows[i] - _product("...j,...jk->...k", line, found)
        return lax.dynamic_update_index_in_dim(found, new, i, lower.ndim - 2)

    return lax.fori_loop(0, CHUNK, row, jnp.zeros_like(lower))


def _inverse_gradient(found: Array, cotangent: Array) -> tuple[Array]:
    # d(X^-1) = -X^-1 dX X^-1
    return (-jnp.tril(_product("...ji,...jk,...lk->...il", found, cotangent, found), -1),)


_inverse.defvjp(lambda lower: (found := _inverse(lower), found), _inverse_gradient)


def _product(spec: str, *operands: Array) -> Array:
    return jnp.einsum(spec, *operands, precision=lax.Precision.HIGHEST)
