"""Rewrites of traced programs that give JAX's attention kernels a VMEM limit and a softmax scale.

The kernels fix their compiler parameters, and splash attention expects a scaled query, which in bfloat16 is a rounded
one: its logsumexp would be wrong in the third digit. A traced program is data. It is changed and then run; there is no
copy of a kernel and no patched module.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from attn_tune.schema.errors import UnsupportedError


def rewritten(
    function: Callable[..., Any], *, vmem_limit_kib: int | None, logits_scale: float = 1.0
) -> Callable[..., Any]:
    """``function``, with each Pallas call directly in it changed.

    All arrays must be arguments: those that ``function`` closes over may not be tracers.

    Args:
      vmem_limit_kib: the call's scoped VMEM limit; None is the compiler's own.
      logits_scale: multiplies the first matrix product of the kernel's body, which is that of queries and keys.

    Raises:
      UnsupportedError: when called, if this release's kernel has not exactly one body with a product.
    """

    def changed(*args: Any) -> Any:
        import jax
        from jax.extend.core import jaxpr_as_fun

        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        equations = [
            _changed_call(equation, vmem_limit_kib, logits_scale)
            if equation.primitive.name == "pallas_call"
            else equation
            for equation in traced.jaxpr.eqns
        ]
        program = traced.replace(jaxpr=traced.jaxpr.replace(eqns=equations))
        flat = jaxpr_as_fun(program)(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), flat)

    return changed


def _changed_call(equation: Any, limit_kib: int | None, scale: float) -> Any:
    params = dict(equation.params)
    if limit_kib is not None:
        params["compiler_params"] = dataclasses.replace(params["compiler_params"], vmem_limit_bytes=1024 * limit_kib)
    if scale != 1.0:
        kernel = params["jaxpr"]
        bodies = sum(_bodies(kernel))
        if bodies != 1:
            raise UnsupportedError(
                f"this release of JAX has {bodies} bodies with a matrix product in {equation.params['name']}, not one: "
                "its logits cannot be scaled; use another kernel, or a scale that is a power of two"
            )
        params["jaxpr"] = _with_scale(kernel, scale)
    return equation.replace(params=params)


def _bodies(jaxpr: Any) -> Iterator[int]:
    yield int(any(equation.primitive.name == "dot_general" for equation in jaxpr.eqns))
    for equation in jaxpr.eqns:
        for inner in _inner(equation.params):
            yield from _bodies(inner)


def _with_scale(jaxpr: Any, scale: float) -> Any:
    equations, is_first = [], True
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general" and is_first:
            equations += _scaled_product(equation, scale)
            is_first = False
            continue
        params = {name: _map_inner(value, scale) for name, value in equation.params.items()}
        equations.append(equation.replace(params=params))
    return jaxpr.replace(eqns=equations)


def _scaled_product(equation: Any, scale: float) -> list[Any]:
    import jax

    (product,) = equation.outvars
    shape = jax.ShapeDtypeStruct(product.aval.shape, product.aval.dtype)
    scaling = jax.make_jaxpr(lambda x: x * scale)(shape).jaxpr
    (multiply,) = scaling.eqns
    return [
        equation.replace(outvars=list(scaling.invars)),
        multiply.replace(outvars=[product]),
    ]


def _inner(params: Any) -> Iterator[Any]:
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if _is_program(item):
                yield getattr(item, "jaxpr", item)


def _map_inner(value: Any, scale: float) -> Any:
    if isinstance(value, tuple | list):
        if not any(map(_is_program, value)):
            return value
        return type(value)([_map_inner(item, scale) for item in value])
    if not _is_program(value):
        return value
    if hasattr(value, "consts"):
        return value.replace(jaxpr=_with_scale(value.jaxpr, scale))
    return _with_scale(value, scale)


def _is_program(value: Any) -> bool:
    from jax.extend import core

    # Not in the list of names that the module exports to type checkers.
    closed = core.ClosedJaxpr  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]
    return isinstance(value, core.Jaxpr | closed)
