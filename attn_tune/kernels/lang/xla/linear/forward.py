"""The forward: a scan over steps of a few tiles; few tokens one after the other."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from attn_tune.kernels.lang.slots import over_slots
from attn_tune.kernels.lang.xla.linear.config import ForwardConfig, solve_of
from attn_tune.kernels.lang.xla.linear.recurrence import recurrence
from attn_tune.kernels.lang.xla.linear.rule import Prepared, advance, prepare
from attn_tune.kernels.lang.xla.linear.tiles import Places, Tiling, entering, grouped, noted, padded, zeros_of
from attn_tune.ops.recurrent.operands import Operands
from attn_tune.ops.recurrent.problem import RecurrentProblem as Problem

type Carry = tuple[Array, Array, Array]


@over_slots
def forward(problem: Problem, config: ForwardConfig, operands: Operands) -> dict[str, Array]:
    """``out`` like the values and ``state`` ``[B, N, H, V]`` in float32."""
    p, o = problem, operands
    if config.chunk == 1:
        return recurrence(p, o)
    tiling = Tiling(p, config.chunk, config.tiles)
    dtype = jnp.dtype(p.dtype if config.products == "working" else "float32")
    initial = zeros_of(p, p.batch) if o.initial_state is None else grouped(p, o.initial_state)
    o = padded(tiling, o)

    def step(carry: Carry, places: Places) -> tuple[Carry, None]:
        state, finals, out = carry
        prepared = prepare(p, solve_of(config), dtype, tiling.tile(places, o))

        def one(carry: tuple[Array, Array], tile: tuple[Places, Prepared]) -> tuple[tuple[Array, Array], Array]:
            (state, finals), (place, ready) = carry, tile
            state, out = advance(dtype, entering(p, initial, place, state), ready)
            return (state, noted(p, finals, place.sequence, state, place.is_last)), out

        (state, finals), made = lax.scan(one, (state, finals), (places, prepared))
        made = made.reshape(*made.shape[:2], p.num_value_heads, *made.shape[4:])
        return (state, finals, tiling.write(places, out, made)), None

    start = (zeros_of(p, 1) if p.ragged else initial, initial, jnp.zeros_like(o.v))
    (state, finals, out), _ = lax.scan(step, start, tiling.places(o.cu_seqlens))
    outputs = {"out": tiling.unpadded(out)}
    if p.has_final_state:
        outputs["state"] = (finals if p.ragged else state).reshape(-1, p.num_value_heads, p.head_dim, p.v_head_dim)
    return outputs
