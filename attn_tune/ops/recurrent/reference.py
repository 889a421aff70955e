"""Linear attention in high precision (the reference) and in the working dtype (the baseline), token by token.

The recurrences are that of Gated Delta Networks (arXiv 2412.06464, equation 10), with the state transposed: its rows
are those of keys, its columns those of values; that of Kimi delta attention (arXiv 2510.26692, equation 1), with a gate
for each row; and those without the delta rule (arXiv 2312.06635, equation 3). Long sequences are computed in chunks
(``chunked.py``). Gradients are those of ``jax.vjp``. Nothing here is shared with a kernel.
"""

# JAX declares no types for scans, cotangents and products.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attn_tune.ops.fields.rounding import round_to
from attn_tune.ops.recurrent.chunked import Rounding, forward_in_chunks, gates_of_tokens
from attn_tune.ops.recurrent.operands import BackwardInputs, Operands
from attn_tune.ops.recurrent.problem import RecurrentProblem

# Longer sequences are computed in chunks, unless they are ragged.
MOST_STEPS = 1024
# Products of a state and a token, of which a CPU computes so many in float64 in about a second.
FLOAT64_ELEMENTS = 2**28


class Token(NamedTuple):
    """One token of each row, or of all arrays of tokens with an axis in front.

    Attributes:
      q, k, v, beta: as in ``Operands``, of the precision of the computation.
      g: gates of rows of the state, or one for all of them.
      sequence: the number of its sequence; of a call that is not ragged zero.
      is_first, is_last: its place in its sequence; of a call that is not ragged false.
    """

    q: Float[Array, "R K H"]
    k: Float[Array, "R K H"]
    v: Float[Array, "R N V"]
    g: Float[Array, "R N gates"]
    beta: Float[Array, "R N"]
    sequence: Int[Array, ""]
    is_first: Bool[Array, ""]
    is_last: Bool[Array, ""]


class Carry(NamedTuple):
    """The values that go from one token to the next.

    Attributes:
      state: the state of each row's sequence.
      finals: the final states of the sequences that have ended; None of a call that is not ragged.
    """

    state: Float[Array, "R N H V"]
    finals: Float[Array, "B N H V"] | None


def reference(problem: RecurrentProblem, direction: str, inputs: Operands | BackwardInputs) -> dict[str, Array]:
    """``out`` and ``state``, or the gradients of all operands, in float32 with products of the highest precision.

    In float64 where 64-bit types are enabled, the problem is small and the default device is a CPU.
    """
    p = problem
    elements = p.rows[0] * p.length * p.num_value_heads * p.head_dim * p.v_head_dim
    has_float64 = jax.dtypes.canonicalize_dtype(jnp.float64) == jnp.float64
    is_wide = has_float64 and elements <= FLOAT64_ELEMENTS and jax.default_backend() == "cpu"
    dtype = jnp.dtype(jnp.float64 if is_wide else jnp.float32)
    return _answers(p, inputs, dtype, lambda x: x)


def baseline(problem: RecurrentProblem, direction: str, inputs: Operands | BackwardInputs) -> dict[str, Array]:
    """The same, each output in its contract's dtype.

    States are float32 and are rounded to the working dtype where they enter a product, as updates are. In a step of
    decoding nothing is: the calls of a job would add up their roundings.
    """
    dtype = jnp.dtype(problem.dtype)
    working = jnp.dtype(jnp.float32) if problem.is_decoding and direction == "fwd" else dtype
    found = _answers(problem, inputs, jnp.dtype(jnp.float32), partial(round_to, dtype=working))
    return {name: x.astype(dtype if name in ("out", "dq", "dk", "dv") else jnp.float32) for name, x in found.items()}


def _answers(
    p: RecurrentProblem, inputs: Operands | BackwardInputs, dtype: jnp.dtype, rounded: Rounding
) -> dict[str, Array]:
    if isinstance(inputs, Operands):
        out, state = (_over_pool if p.has_pool else _forward)(p, inputs, dtype, rounded)
        return {"out": out, "state": state} if p.has_final_state else {"out": out}
    o, names = inputs.operands, ("q", "k", "v", "g", "beta", "initial_state")
    reals = {name: x.astype(dtype) for name in names if (x := getattr(o, name)) is not None}
    (out, state), pull = jax.vjp(lambda reals: _forward(p, o._replace(**reals), dtype, rounded), reals)
    dout = _masked(o, inputs.dout).astype(out.dtype)
    dstate = jnp.zeros_like(state) if inputs.dstate is None else inputs.dstate.astype(state.dtype)
    (gradients,) = pull((dout, dstate))
    return {f"d{name}": x for name, x in gradients.items()}


def _forward(p: RecurrentProblem, o: Operands, dtype: jnp.dtype, rounded: Rounding) -> tuple[Array, Array]:
    """The outputs of all tokens, and the final states of all sequences."""
    in_chunks = p.length > MOST_STEPS and not p.ragged
    return (forward_in_chunks if in_chunks else forward_in_steps)(p, o, dtype, rounded)


def _over_pool(p: RecurrentProblem, o: Operands, dtype: jnp.dtype, rounded: Rounding) -> tuple[Array, Array]:
    """The outputs of all tokens, and the pool with the final states of those sequences that have a slot of it."""
    assert o.initial_state is not None
    assert o.slots is not None
    pool = o.initial_state.astype(dtype)
    has_slot = (o.slots >= 0) & (o.slots < len(pool))
    held = pool[jnp.clip(o.slots, 0, len(pool) - 1)]
    states = jnp.where(has_slot[:, None, None, None], held, 0)
    out, finals = _forward(p, o._replace(initial_state=states, slots=None), dtype, rounded)
    return out, pool.at[jnp.where(has_slot, o.slots, len(pool))].set(finals, mode="drop")


def forward_in_steps(p: RecurrentProblem, o: Operands, dtype: jnp.dtype, rounded: Rounding) -> tuple[Array, Array]:
    """As ``forward_in_chunks``, token by token; ragged calls too."""
    initial = jnp.zeros(p.state_shape, dtype) if o.initial_state is None else o.initial_state.astype(dtype)
    step = partial(_step, p, initial if p.ragged else None, rounded)
    # Gradients hold the states at the borders of blocks, and those of one block.
    block = max(1, math.isqrt(p.length))
    tokens = _tokens(p, o, dtype, -p.length % block)
    blocks = jax.tree.map(lambda x: x.reshape(-1, block, *x.shape[1:]), tokens)
    # A sequence without a token ends as it began.
    start = Carry(initial[:1], initial) if p.ragged else Carry(initial, None)
    carry, out = lax.scan(jax.checkpoint(lambda carry, block: lax.scan(step, carry, block)), start, blocks)
    out = jnp.moveaxis(out.reshape(-1, *out.shape[2:])[: p.length], 0, 1)
    return out, carry.state if carry.finals is None else carry.finals


def _step(
    p: RecurrentProblem, initial: Array | None, rounded: Rounding, carry: Carry, token: Token
) -> tuple[Carry, Array]:
    state, finals = carry
    if initial is not None:
        state = jnp.where(token.is_first, initial[token.sequence][None], state)
    product = partial(jnp.einsum, precision=lax.Precision.HIGHEST)
    q, k = (jnp.repeat(x, p.group_size, axis=1) for x in (token.q, token.k))
    state = _forgotten(state, token.g[..., None])
    update = token.v
    if p.has_delta:
        known = product("rnh,rnhv->rnv", k, rounded(state))
        update = rounded(token.beta[..., None] * (token.v - known))
    state = state + product("rnh,rnv->rnhv", k, update)
    out = p.scale * product("rnh,rnhv->rnv", q, rounded(state))
    if finals is not None:
        ended = jnp.where(token.is_last, state[0], finals[token.sequence])
        finals = finals.at[token.sequence].set(ended)
    return Carry(state, finals), out


def _forgotten(state: Array, g: Array) -> Array:
    """``exp(g) state``.

    A factor near one is rounded by the same amount for every token, which adds up over all of them where the gate is
    constant: what it lacks to one is rounded instead. Of strong gates that would be one itself.
    """
    return jnp.where(g > -1, state + jnp.expm1(g) * state, jnp.exp(g) * state)


def _tokens(p: RecurrentProblem, o: Operands, dtype: jnp.dtype, padding: int) -> Token:
    """All tokens, their axis first, and such behind them that change nothing."""
    g = gates_of_tokens(p, o.g, dtype)
    beta = jnp.ones((*p.rows, p.num_value_heads), dtype) if o.beta is None else o.beta
    sequence, is_first, is_last = _places(p, o)

    def padded(x: Array) -> Array:
        return jnp.pad(x, ((0, padding), *[(0, 0)] * (x.ndim - 1)))

    def ordered(x: Array) -> Array:
        return padded(jnp.moveaxis(_masked(o, x).astype(dtype), 1, 0))

    q, k, v, g, beta = (ordered(x) for x in (o.q, o.k, o.v, g, beta))
    return Token(q, k, v, g, beta, padded(sequence), padded(is_first), padded(is_last))


def _masked(o: Operands, x: Array) -> Array:
    """``x`` with zeros for tokens of no sequence."""
    if o.cu_seqlens is None:
        return x
    token = jnp.arange(x.shape[1])
    own = (token >= o.cu_seqlens[0]) & (token < o.cu_seqlens[-1])
    return jnp.where(own.reshape(-1, *[1] * (x.ndim - 2)), x, 0)


def _places(p: RecurrentProblem, o: Operands) -> tuple[Int[Array, " T"], Bool[Array, " T"], Bool[Array, " T"]]:
    """The number of the sequence of each token, and whether it is the first or the last one there."""
    token = jnp.arange(p.length, dtype=jnp.int32)
    if o.cu_seqlens is None:
        return jnp.zeros_like(token), jnp.zeros_like(token, bool), jnp.zeros_like(token, bool)
    begins, ends = o.cu_seqlens[:-1], o.cu_seqlens[1:]
    inside = (token[:, None] >= begins) & (token[:, None] < ends)
    own = jnp.any(inside, axis=1)
    sequence = jnp.argmax(inside, axis=1).astype(jnp.int32)
    return sequence, own & (token == begins[sequence]), own & (token == ends[sequence] - 1)
