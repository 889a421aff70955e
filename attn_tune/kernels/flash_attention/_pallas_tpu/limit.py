"""The scoped VMEM limit of a Pallas call that does not offer it.

JAX's attention kernels fix their compiler parameters. The limit is a field of these, and a program can be traced,
changed and run: no copy of a kernel and no patched module is needed.
"""

import dataclasses
from collections.abc import Callable
from typing import Any


def with_vmem_limit(function: Callable[..., Any], limit_kib: int | None) -> Callable[..., Any]:
    """``function``, with each Pallas call directly in it compiled under this limit; None is the compiler's own.

    All arrays must be arguments: those that ``function`` closes over may not be tracers.
    """
    if limit_kib is None:
        return function

    def limited(*args: Any) -> Any:
        import jax
        from jax.extend.core import jaxpr_as_fun

        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        inner = traced.jaxpr.replace(
            eqns=[_limited(equation, 1024 * limit_kib) for equation in traced.jaxpr.eqns]
        )
        flat = jaxpr_as_fun(traced.replace(jaxpr=inner))(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), flat)

    return limited


def _limited(equation: Any, limit_bytes: int) -> Any:
    if equation.primitive.name != "pallas_call":
        return equation
    params = dataclasses.replace(equation.params["compiler_params"], vmem_limit_bytes=limit_bytes)
    return equation.replace(params=equation.params | {"compiler_params": params})
