"""The backward: the states before each step of tiles, then from the last step to the first their gradients.

Within a step everything is computed a second time, and differentiated by JAX: no more than a step's is kept.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from attn_tune.kernels.lang.xla.linear.config import BackwardConfig, solve_of
from attn_tune.kernels.lang.xla.linear.rule import Prepared, advance, prepare
from attn_tune.kernels.lang.xla.linear.tiles import Places, Tiling, entering, grouped, noted, padded, zeros_of
from attn_tune.ops.recurrent.operands import BackwardInputs
from attn_tune.ops.recurrent.problem import RecurrentProblem as Problem

_TOKENS = ("q", "k", "v", "g", "beta")

type Carry = tuple[Array, Array, dict[str, Array]]


def backward(problem: Problem, config: BackwardConfig, inputs: BackwardInputs) -> dict[str, Array]:
    """The gradient ``dx`` of every operand ``x`` that is differentiable, each like its primal."""
    p = problem
    tiling = Tiling(p, config.chunk, config.tiles)
    dtype = jnp.dtype(p.dtype if config.products == "working" else "float32")
    o = padded(tiling, inputs.operands)
    dout = tiling.padded(inputs.dout)
    nothing = zeros_of(p, p.batch)
    initial = nothing if o.initial_state is None else grouped(p, o.initial_state)
    dfinal = nothing if inputs.dstate is None else grouped(p, inputs.dstate)
    ready = partial(prepare, p, solve_of(config), dtype)

    def states(state: Array, places: Places, prepared: Prepared) -> tuple[Array, Array]:
        """The state after a step, and those before each of its tiles."""

        def one(state: Array, tile: tuple[Places, Prepared]) -> tuple[Array, Array]:
            before = entering(p, initial, tile[0], state)
            return advance(dtype, before, tile[1])[0], before

        return lax.scan(one, state, (places, prepared))

    def ahead(state: Array, places: Places) -> tuple[Array, Array]:
        return states(state, places, ready(tiling.tile(places, o)))[0], state

    def back(carry: Carry, step: tuple[Places, Array]) -> tuple[Carry, None]:
        dstate, dinitial, gradients = carry
        places, state = step
        prepared, pull = jax.vjp(ready, tiling.tile(places, o))
        _, befores = states(state, places, prepared)
        douts = tiling.read(places, dout).astype(jnp.float32)
        douts = douts.reshape(*douts.shape[:2], p.num_key_heads, p.group_size, *douts.shape[3:])

        def one(carry: tuple[Array, Array], tile: tuple) -> tuple[tuple[Array, Array], Prepared]:
            (dstate, dinitial), (place, prepared, before, dout) = carry, tile
            if p.ragged:
                dstate = jnp.where(place.is_last, dfinal[place.sequence][None], dstate)
            _, pull = jax.vjp(partial(advance, dtype), before, prepared)
            dstate, dprepared = pull((dstate, dout))
            return (dstate, noted(p, dinitial, place.sequence, dstate, place.is_first)), dprepared

        tiles = (places, prepared, befores, douts)
        (dstate, dinitial), dprepared = lax.scan(one, (dstate, dinitial), tiles, reverse=True)
        (dtile,) = pull(dprepared)
        for name, x in gradients.items():
            new = getattr(dtile, name)
            if name not in ("q", "k"):
                new = new.reshape(*new.shape[:2], p.num_value_heads, *new.shape[4:])
            if name == "g" and p.gate != "channel":
                new = new[..., 0]
            if x.ndim == 1:
                # All tokens have the same gate; places without one have none.
                gradients |= {name: x + jnp.sum(new, axis=(0, 1, 3), where=places.is_token[:, None, None])}
            else:
                gradients |= {name: tiling.write(places, x, new)}
        return (dstate, dinitial, gradients), None

    places = tiling.places(o.cu_seqlens)
    _, befores = lax.scan(ahead, zeros_of(p, 1) if p.ragged else initial, places)
    gradients = {name: jnp.zeros_like(x) for name in _TOKENS if (x := getattr(o, name)) is not None}
    # A sequence without a token ends as it began.
    start = (zeros_of(p, 1) if p.ragged else dfinal, dfinal, gradients)
    (dstate, dinitial, gradients), _ = lax.scan(back, start, (places, befores), reverse=True)
    outputs = {f"d{name}": x if x.ndim == 1 else tiling.unpadded(x) for name, x in gradients.items()}
    if o.initial_state is not None:
        outputs["dinitial_state"] = (dinitial if p.ragged else dstate).reshape(o.initial_state.shape)
    return outputs
