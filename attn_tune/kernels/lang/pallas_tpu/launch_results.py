"""The results of a library's Pallas call that the library itself drops.

Its own module, so that a change here leaves the rows of kernels that only rewrite programs as they are.
"""

from collections.abc import Callable
from typing import Any

from attn_tune.schema.errors import UnsupportedError


def launch_results(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """``function`` with all results of the one Pallas call directly in it, in the place of what it makes of them.

    All arrays must be arguments, as of ``rewrite.rewritten``.

    Raises:
      UnsupportedError: when called, if there is not exactly one such call.
    """

    def changed(*args: Any) -> list[Any]:
        import jax
        from jax.extend.core import jaxpr_as_fun

        traced = jax.make_jaxpr(function)(*args)
        calls = [equation for equation in traced.jaxpr.eqns if equation.primitive.name == "pallas_call"]
        if len(calls) != 1:
            raise UnsupportedError(f"this release of JAX has {len(calls)} Pallas calls in a kernel that had one")
        program = traced.replace(jaxpr=traced.jaxpr.replace(outvars=list(calls[0].outvars)))
        return jaxpr_as_fun(program)(*jax.tree.leaves(args))

    return changed
