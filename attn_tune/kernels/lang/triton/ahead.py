"""Compiles the Triton kernels of a traced call before XLA asks for them, while another kernel can still answer."""

import contextvars
from typing import Any

import jax

from attn_tune.kernels.lang.jaxprs import equations
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
    for equation in equations(jaxpr, "triton_call"):
        launch = equation.params["launch"]
        if not is_interpreted(launch.kernel):
            dtypes = tuple(str(operand.aval.dtype) for operand in equation.invars)
            # In a context of its own: what records compiled kernels would find each twice.
            contextvars.Context().run(compile_kernel, launch, dtypes, target_capability())
