"""Arrays that the walks of a backward leave, and the gradients that an operand each gets."""

from typing import NamedTuple

import jax

from attn_tune.ops.gated_delta_rule.operands import Operands


class Kept(NamedTuple):
    """Arrays that the walk forwards leaves.

    Attributes:
      states: the state before each chunk ``[slots, N, H, V]``, in the working dtype.
      updates: the update of each token ``[R, T, N, V]``, likewise.
      rests: what of the updates that dtype does not hold, likewise; one element if it is float32.
    """

    states: jax.Array
    updates: jax.Array
    rests: jax.Array


class Walked(NamedTuple):
    """Arrays that the walk backwards leaves.

    Attributes:
      state_gradients: the gradient of the state after each chunk, like ``states``.
      update_gradients: the gradients of the right sides of the triangular systems ``[R, T, N, V]``, in the working
        dtype.
      dv: the gradient of the values.
      dinitial_state: the gradient of the initial states ``[B, N, H, V]``, in float32.
    """

    state_gradients: jax.Array
    update_gradients: jax.Array
    dv: jax.Array
    dinitial_state: jax.Array


def named(operands: Operands, walked: Walked, gradients: tuple[jax.Array, ...]) -> dict[str, jax.Array]:
    """The gradients by name, of the operands that there are; ``gradients`` are ``dq``, ``dk``, ``dg`` and ``dbeta``."""
    dq, dk, dg, dbeta = gradients
    found = {"dq": dq, "dk": dk, "dv": walked.dv}
    if operands.g is not None:
        found["dg"] = dg
    if operands.beta is not None:
        found["dbeta"] = dbeta
    if operands.initial_state is not None:
        found["dinitial_state"] = walked.dinitial_state
    return found
