"""The one derivative that the kernels have: the first, in reverse mode."""

from collections.abc import Callable
from typing import Any

import jax

from attn_tune.schema.errors import UnsupportedError


def without_derivative(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``function``, which is part of a derivative rule, with a clear error where it is differentiated again.

    That happens in second derivatives only: JAX asks the rule itself, not what it calls, for the first.
    """
    guarded = jax.custom_jvp(function)

    @guarded.defjvp
    def refuse(primals: Any, tangents: Any) -> Any:
        raise UnsupportedError(
            "flash_attention has no second derivative (hessian, grad of grad, a gradient with respect to a cotangent): "
            "its kernels are differentiated once, in reverse mode; attn_tune.attention and "
            "jax.nn.dot_product_attention are differentiated any number of times"
        )

    return guarded
