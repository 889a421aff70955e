"""The recurrence itself, token by token: for a few tokens, whose state is read and written once or twice."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from attn_tune.kernels.lang.xla.linear.tiles import Places, Tile, Tiling, entering, grouped, noted, zeros_of
from attn_tune.ops.recurrent.operands import Operands
from attn_tune.ops.recurrent.problem import RecurrentProblem as Problem

# Steps of a loop that are compiled one after the other: a loop of a GPU costs several microseconds a step.
_UNROLLED = 8

type Carry = tuple[Array, Array, Array]


def recurrence(p: Problem, o: Operands) -> dict[str, Array]:
    """``out`` and ``state``, as of ``forward``."""
    tiling = Tiling(p, 1, 1)
    initial = zeros_of(p, p.batch) if o.initial_state is None else grouped(p, o.initial_state)

    def step(carry: Carry, places: Places) -> tuple[Carry, None]:
        state, finals, out = carry
        # One tile of one token.
        place, tile = jax.tree.map(lambda x: x[0], (places, tiling.tile(places, o)))
        state, made = _token(p, entering(p, initial, place, state), tile)
        finals = noted(p, finals, place.sequence, state, place.is_last)
        made = made.reshape(1, -1, p.num_value_heads, 1, p.v_head_dim)
        return (state, finals, tiling.write(places, out, made)), None

    start = (zeros_of(p, 1) if p.ragged else initial, initial, jnp.zeros_like(o.v))
    (state, finals, out), _ = lax.scan(step, start, tiling.places(o.cu_seqlens), unroll=min(tiling.count, _UNROLLED))
    outputs = {"out": out}
    if p.has_final_state:
        outputs["state"] = (finals if p.ragged else state).reshape(-1, p.num_value_heads, p.head_dim, p.v_head_dim)
    return outputs


def _token(p: Problem, state: Array, tile: Tile) -> tuple[Array, Array]:
    """The state after one token, and its output. Sums, not products of matrices, so that XLA fuses them."""
    q, k = (x.astype(jnp.float32)[:, :, None, 0, :, None] for x in (tile.q, tile.k))
    update = tile.v[..., 0, :].astype(jnp.float32)
    state = jnp.exp(tile.g[..., 0, :])[..., None] * state
    if p.has_delta:
        update = tile.beta * (update - jnp.sum(k * state, axis=-2))
    state = state + k * update[..., None, :]
    return state, p.scale * jnp.sum(q * state, axis=-2)
