"""Random data for one call of linear attention, made on the device; padding of ragged calls is poisoned."""

# JAX declares no types for norms.
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from attn_tune.ops.recurrent.operands import BackwardInputs, Operands
from attn_tune.ops.recurrent.problem import LOWEST_GATE, PADDING_BEFORE, RecurrentProblem

# Heads forget at rates from one to this power of two, as those of models do.
_SLOWEST = -16
# Away from the edges every second head forgets so many times as fast, and under the delta rule its strengths, logistic
# functions of normal numbers, are of numbers that are so much less: it remembers the first of thousands of tokens.
_LONG_MEMORY, _WEAK = 2.0**-12, 5.0
# Gates at the edges in turn: none at all, hardly any, strong ones, and resets, with ordinary ones between.
_GATES = (0.0, -1e-3, -0.3, -20.0, -0.1, 0.0, -88.0, -0.2, LOWEST_GATE, -0.5, -1e-3)
# At the edges the heads take turns: gates of every kind, no forgetting at all, ordinary gates. Of gates of channels the
# second head has each kind in some channels for all tokens, and the first one another kind in each channel.
KINDS = 3
# Gates of heads at the edges, where each has one.
CONSTANT_GATES = (0.0, -1e-3, -1.0, LOWEST_GATE)
# Lengths of queries and keys at the edges in turn: a kernel must not make them one. Under the delta rule a state grows
# with keys that are longer.
_QUERY_LENGTHS, _KEY_LENGTHS = (1.0, 2.0, 0.25, 1.5), (1.0, 0.5, 1.0, 0.7, 1.0)
# At the edges a sequence begins so many turns later than the one before it; one of a single token has but its first.
_TURNS = 3
# Tokens that have one key at the edges, inside one chunk of 64 of a dense and of a ragged feature problem: powers of
# their products, of which some make an inverse, are very large.
_ALIKE = range(130, 170)
# With so many sequences at the edges three have no slot of a pool; with fewer, one.
_MANY = 4


def make_inputs(problem: RecurrentProblem, direction: str, seed: int) -> Operands | BackwardInputs:
    """Inputs of one call, the same for the same seed; may be called under ``jit``.

    Values and cotangents of outputs are standard normal. Queries and keys have length one, which keeps the recurrence
    from growing. Gates are those of heads that forget slowly or fast; every second one hardly forgets and has weak
    strengths, except at the edges. Strengths are between 0 and 1, at the edges between 0 and 2. There queries and keys
    have several lengths, and a key comes several times in a row, once many times with strengths up to one. Sequences of
    a ragged call have the workload's lengths in random order; at the edges tokens before the first one and behind the
    last one belong to none, and are NaN. Slots of a pool are in random order, and at the edges some are none of its
    own; those of no sequence hold NaN. The cotangent of the final states is about as large as what the outputs add to
    it.
    """
    p = problem
    # The draws depend on the number of keys, and those of problems without a pool stay what recorded errors are of.
    keys = iter(jax.random.split(jax.random.key(seed), 10 if p.has_pool else 9))
    starts = _starts(p, next(keys)) if p.ragged else None
    numbers = (*p.rows, p.num_value_heads)
    token = jnp.arange(p.length)

    def poisoned(x: Array, dtype: str) -> Array:
        if starts is not None:
            own = ((token >= starts[0]) & (token < starts[-1])).reshape(-1, *[1] * (x.ndim - 2))
            x = jnp.where(own, x, jnp.nan)
        return x.astype(dtype)

    def unit(key: Array) -> Array:
        drawn = jax.random.normal(key, (*p.rows, p.num_key_heads, p.head_dim))
        return drawn / jnp.linalg.norm(drawn, axis=-1, keepdims=True)

    q, k = unit(next(keys)), unit(next(keys))
    normal = partial(jax.random.normal, dtype=jnp.float32)
    values = (*numbers, p.v_head_dim)
    v, strength = (normal(next(keys), shape) for shape in (values, numbers))
    if p.at_edges:
        is_alike = (token >= _ALIKE.start) & (token < _ALIKE.stop)
        # Runs of one, two and three equal keys, and a long one.
        k = k[:, jnp.where(is_alike, _ALIKE.start, token - jnp.asarray((0, 0, 1, 0, 1, 2))[token % 6])]
        turn = _turns(p)[..., None, None]
        q, k = (
            jnp.asarray(lengths)[turn % len(lengths)] * x for x, lengths in ((q, _QUERY_LENGTHS), (k, _KEY_LENGTHS))
        )
        strength = jnp.where(is_alike[:, None], -jnp.abs(strength), strength)
    else:
        strength = strength - _WEAK * _remembers(p)
    gates = _gates(p, next(keys), poisoned) if p.has_gate else None
    state = normal(next(keys), p.state_shape) if p.has_initial_state else None
    slots = _slots(p, next(keys)) if p.has_pool else None
    if state is not None and slots is not None:
        state = _poisoned_pool(state, slots)
    operands = Operands(
        q=poisoned(q, p.dtype),
        k=poisoned(k, p.dtype),
        v=poisoned(v, p.dtype),
        g=gates,
        beta=poisoned((2 if p.at_edges else 1) * jax.nn.sigmoid(strength), "float32") if p.has_beta else None,
        initial_state=state,
        cu_seqlens=starts,
        slots=slots,
    )
    if direction == "fwd":
        return operands
    dout = poisoned(normal(next(keys), values), p.dtype)
    dstate = p.head_dim**-0.5 * normal(next(keys), p.state_shape) if p.has_final_state else None
    return BackwardInputs(operands, dout, dstate)


def _starts(p: RecurrentProblem, key: Array) -> Int[Array, " ends"]:
    lengths = np.asarray(p.lengths, np.int32)
    ordered = jnp.asarray(lengths) if p.at_edges else jax.random.permutation(key, lengths)
    first = min(p.padding, PADDING_BEFORE)
    return first + jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(ordered, dtype=jnp.int32)])


def _slots(p: RecurrentProblem, key: Array) -> Int[Array, " B"]:
    """A slot for each sequence, in no order; at the edges some have none: below the pool's slots and beyond them."""
    slots = p.state_shape[0]
    found = jax.random.permutation(key, slots)[: p.batch].astype(jnp.int32)
    if not p.at_edges:
        return found
    if p.batch < _MANY:
        return found.at[0].set(-1)
    # The first sequence of a ragged call has no token, whose state would not be read.
    return found.at[jnp.asarray((1, -2, -1))].set(jnp.asarray((-1, -7, slots), jnp.int32))


def _poisoned_pool(pool: Float[Array, "slots N H V"], slots: Int[Array, " B"]) -> Float[Array, "slots N H V"]:
    """The pool with NaN in the slots of no sequence."""
    is_read = jnp.any(jnp.arange(len(pool)) == slots[:, None], axis=0)
    return jnp.where(is_read[:, None, None, None], pool, jnp.nan)


def _remembers(p: RecurrentProblem) -> Bool[Array, " N"]:
    """Whether a value head has a long memory: every second one."""
    return jnp.arange(p.num_value_heads) % 2 == 1


def _turns(p: RecurrentProblem) -> Int[Array, "R T"]:
    """The number of the turn of each token at the edges; of the first tokens of rows it is another."""
    row, token = jnp.arange(p.rows[0]), jnp.arange(p.length)
    return token + _TURNS * row[:, None]


def _gates(p: RecurrentProblem, key: Array, poisoned: Callable[[Array, str], Array]) -> Float[Array, "..."]:
    drawn, rates = jax.random.split(key)
    head = jnp.arange(p.num_value_heads)
    channels = (p.head_dim,) if p.gate == "channel" else ()
    rate = 2.0 ** jax.random.uniform(rates, (p.num_value_heads, *channels), minval=_SLOWEST, maxval=0.0)
    if not p.at_edges:
        rate = jnp.where(_remembers(p).reshape(-1, *[1] * len(channels)), _LONG_MEMORY, 1.0) * rate
    if p.gate == "constant":
        return jnp.asarray(CONSTANT_GATES)[head % len(CONSTANT_GATES)] if p.at_edges else -rate
    usual = -rate * jax.nn.softplus(jax.random.normal(drawn, (*p.rows, *rate.shape)))
    if not p.at_edges:
        return poisoned(usual, "float32")
    kind, of_kind, turn = head % KINDS, jnp.asarray(_GATES), _turns(p)[..., None]
    none = jnp.zeros(())
    if channels:
        kind, channel = kind[:, None], jnp.arange(p.head_dim)
        turn = turn[..., None] + channel
        none = of_kind[channel % len(_GATES)]
    found = jnp.where(kind == 0, of_kind[turn % len(_GATES)], jnp.where(kind == 1, none, usual))
    return poisoned(found, "float32")
