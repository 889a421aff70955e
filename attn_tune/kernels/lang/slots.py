"""States in slots of a pool, for kernels that know of states of sequences alone."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

type Forward[P, C] = Callable[[P, C, Any], dict[str, jax.Array]]


def over_slots[P, C](forward: Forward[P, C]) -> Forward[P, C]:
    """``forward`` for pools too: it is given the states that the slots hold, and its final states are written there.

    That reads and writes each of these states once more. XLA writes into the pool in place where it is donated.
    """

    @functools.wraps(forward)
    def whole(problem: P, config: C, operands: Any) -> dict[str, jax.Array]:
        pool, slots = operands.initial_state, operands.slots
        if slots is None:
            return forward(problem, config, operands)
        # A negative slot would count from the end.
        places = jnp.where(slots < 0, pool.shape[0], slots)
        states = pool.at[places].get(mode="fill", fill_value=0)
        found = forward(problem, config, operands._replace(initial_state=states, slots=None))
        return found | {"state": pool.at[places].set(found["state"], mode="drop")}

    return whole
