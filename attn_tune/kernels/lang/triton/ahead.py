"""Compiles the Triton kernels of a traced call before XLA asks for them, while another kernel can still answer."""

import contextvars
from collections.abc import Iterator
from typing import Any

import jax

from attn_tune.kernels.lang.triton.compile import compile_kernel
from attn_tune.kernels.lang.triton.interpret import is_interpreted
from attn_tune.kernels.lang.triton.target import target_capability, target_context


def compile_traced(jaxpr: Any) -> None:
    """Compile all Triton kernels in a jaxpr for the GPU of this process, or the one that is named. Without one: none.

    What is compiled is found again when the program is lowered.

    Raises:
      CompileError: Triton or ptxas refuses a kernel.
      OutOfResources: one block needs more than the GPU has.
    """
    if target_context().value is None and jax.default_backend() != "gpu":
        return
    for equation in _equations(jaxpr):
        if equation.primitive.name == "triton_call" and not is_interpreted(equation.params["launch"].kernel):
            dtypes = tuple(str(operand.aval.dtype) for operand in equation.invars)
            # In a context of its own: what records compiled kernels would find each twice.
            contextvars.Context().run(compile_kernel, equation.params["launch"], dtypes, target_capability())


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for item in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(item, "jaxpr", item)
                if hasattr(inner, "eqns"):
                    yield from _equations(inner)
