"""Derivatives that no kernel of an op has: those of the op's plain computation, or a clear error."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attn_tune.api.declaration import Call, operands_of
from attn_tune.ops.contract import load
from attn_tune.ops.registry import get_op
from attn_tune.schema.errors import UnsupportedError


def guarded(call: Call, problem: Any, direction: str, function: Callable[[Any], dict]) -> Callable[[Any], dict]:
    """``function``, one direction of an op, with a rule for derivatives that its kernels do not have.

    JAX asks the derivative rule of the op itself for a first derivative. What it calls is differentiated in second
    derivatives only, and in any derivative of an op without a backward. The rule is the derivative of the op's
    ``baseline`` if the op says so; otherwise it raises.

    Raises:
      UnsupportedError: when the derivative is taken.
    """
    guard = jax.custom_jvp(function)

    @guard.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        if not call.plain_derivative:
            raise UnsupportedError(refusal(call))
        (inputs,), (changes,) = primals, tangents
        outputs = guard(inputs)
        leaves, tree = jax.tree.flatten(inputs)
        of_reals = [i for i, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.inexact)]
        here = call.with_shapes(problem, operands_of(inputs))
        baseline = load(get_op(call.op).baseline)

        def plain(*reals: Any) -> dict:
            filled = list(leaves)
            for i, x in zip(of_reals, reals, strict=True):
                filled[i] = x
            found = call.wanted(here, inputs, baseline(here, direction, jax.tree.unflatten(tree, filled)))
            return {name: found[name].astype(x.dtype) for name, x in outputs.items()}

        every = jax.tree.leaves(changes)
        _, moved = jax.jvp(plain, [leaves[i] for i in of_reals], [every[i] for i in of_reals])
        return outputs, moved

    return guard


def refusal(call: Call) -> str:
    """The sentence of the error where a derivative is refused."""
    way = f"; {call.alternative}" if call.alternative else ""
    if call.backward_inputs is None:
        one = f"this call of {call.op}" if call.gradients else call.op
        return (
            f"{one} has no derivative: its kernels compute the forward alone{way}; "
            "jax.lax.stop_gradient of its operands says that none is wanted"
        )
    return (
        f"{call.op} has no second derivative (hessian, grad of grad, a gradient with respect to a cotangent): "
        f"its kernels are differentiated once, in reverse mode{way}"
    )
