"""Linear attention of long sequences in high precision: chunk by chunk.

Token by token a GPU takes seconds for what this takes milliseconds. A test compares the two. With a gate for each
channel every pair of tokens has its own factor in each channel. These are all formed, so that no exponent is above
zero, and chunks are short.
"""

# JAX declares no types for scans, cotangents and products.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from attn_tune.ops.recurrent.operands import Operands
from attn_tune.ops.recurrent.problem import RecurrentProblem

CHUNK, CHANNEL_CHUNK = 64, 16

type Rounding = Callable[[Array], Array]


def gates_of_tokens(
    p: RecurrentProblem, g: Float[Array, "..."] | None, dtype: jnp.dtype
) -> Float[Array, "R T N gates"]:
    """The gates of each token and value head: one for each row of the state, or one for all of them."""
    one = (*p.rows, p.num_value_heads, 1)
    if g is None:
        return jnp.zeros(one, dtype)
    if p.gate == "constant":
        return jnp.broadcast_to(g.astype(dtype)[:, None], one)
    return g if p.gate == "channel" else g[..., None]


def forward_in_chunks(
    p: RecurrentProblem, o: Operands, dtype: jnp.dtype, rounded: Rounding
) -> tuple[Float[Array, "B T N V"], Float[Array, "B N H V"]]:
    """The outputs of all tokens and the final states of a call that is not ragged.

    Args:
      dtype: of the computation.
      rounded: of states, updates and weights, before they enter a product.
    """
    chunk = CHANNEL_CHUNK if p.gate == "channel" else CHUNK
    g = gates_of_tokens(p, o.g, dtype)
    beta = jnp.ones((*p.rows, p.num_value_heads), dtype) if o.beta is None else o.beta
    q, k = (jnp.repeat(x, p.group_size, axis=2) for x in (o.q, o.k))
    # Tokens behind the last one change nothing.
    padding = -p.length % chunk

    def cut(x: Array) -> Array:
        x = jnp.pad(x.astype(dtype), ((0, 0), (0, padding), *[(0, 0)] * (x.ndim - 2)))
        x = x.reshape(p.batch, -1, chunk, *x.shape[2:])
        return jnp.moveaxis(x, (1, 3), (0, 2))

    start = jnp.zeros(p.state_shape, dtype) if o.initial_state is None else o.initial_state.astype(dtype)
    q, k, v, g, beta = (cut(x) for x in (q, k, o.v, g, beta))
    solved = None
    if p.has_delta:
        solved = _inverse(lax.map(jax.checkpoint(lambda tokens: _system(*tokens)), (k, g, beta)))
    body = jax.checkpoint(partial(_chunk, p, rounded))
    state, out = lax.scan(body, start, (q, k, v, g, beta, solved))
    out = jnp.moveaxis(out, (0, 2), (1, 3))
    return out.reshape(p.batch, -1, *out.shape[3:])[:, : p.length], state


def _chunk(
    p: RecurrentProblem, rounded: Rounding, state: Array, tokens: tuple[Array, Array, Array, Array, Array, Array | None]
) -> tuple[Array, Array]:
    """The state after one chunk, and its outputs ``[B, N, C, V]``."""
    q, k, v, g, beta, solved = tokens
    decays = _decays(g)
    since_start = jnp.exp(jnp.cumsum(g, axis=-2))
    until_end = decays[..., -1, :, :]
    before = rounded(state)
    update = v
    if solved is not None:
        known = _product("bnch,bnhv->bncv", since_start * k, before)
        update = rounded(_product("bnij,bnjv->bniv", solved, beta[..., None] * (v - known)))
    weights = rounded(_pairs(q, k, decays))
    out = _product("bnch,bnhv->bncv", since_start * q, before) + _product("bnij,bnjv->bniv", weights, update)
    state = since_start[..., -1, :, None] * state + _product("bnch,bncv->bnhv", until_end * k, update)
    return state, p.scale * out


def _system(k: Array, g: Array, beta: Array) -> Array:
    """By what the updates of a chunk depend on those before them: strictly lower triangular."""
    return jnp.tril(beta[..., None] * _pairs(k, k, _decays(g)), -1)


def _pairs(x: Array, y: Array, decays: Float[Array, "*chunks C C gates"]) -> Float[Array, "*chunks C C"]:
    """The products of ``x`` of each row with ``y`` of each column, decayed from one to the other."""
    if decays.shape[-1] == 1:
        return decays[..., 0] * _product("...ih,...jh->...ij", x, y)
    return jnp.sum(decays * x[..., :, None, :] * y[..., None, :, :], axis=-1)


def _decays(g: Float[Array, "*chunks C gates"]) -> Float[Array, "*chunks C C gates"]:
    """Row i, column j: the product of the gates behind token j up to token i, whose logarithms are added one by one."""
    size = g.shape[-2]
    causal = jnp.tril(jnp.ones((size, size), bool))[..., None]
    behind = jnp.tril(causal[..., 0], -1)[..., None]
    spans = jnp.cumsum(jnp.where(behind, g[..., :, None, :], 0.0), axis=-3)
    return jnp.where(causal, jnp.exp(spans), 0.0)


@jax.custom_vjp
def _inverse(lower: Float[Array, "*chunks C C"]) -> Float[Array, "*chunks C C"]:
    """The inverse of ``I + lower``, row by row."""
    size = lower.shape[-1]
    rows = jnp.eye(size, dtype=lower.dtype)

    def row(i: Array, found: Array) -> Array:
        line = lax.dynamic_index_in_dim(lower, i, lower.ndim - 2, keepdims=False)
        new = rows[i] - _product("...j,...jk->...k", line, found)
        return lax.dynamic_update_index_in_dim(found, new, i, lower.ndim - 2)

    return lax.fori_loop(0, size, row, jnp.zeros_like(lower))


def _inverse_gradient(found: Array, cotangent: Array) -> tuple[Array]:
    # d(X^-1) = -X^-1 dX X^-1
    return (-jnp.tril(_product("...ji,...jk,...lk->...il", found, cotangent, found), -1),)


_inverse.defvjp(lambda lower: (found := _inverse(lower), found), _inverse_gradient)


def _product(spec: str, *operands: Array) -> Array:
    return jnp.einsum(spec, *operands, precision=lax.Precision.HIGHEST)
