"""The precision of a kernel's products, which the library's kernels leave to the context they are traced in."""

import contextlib

import jax

from attn_tune.kernels.lang.attention import Attention


def precision_of(problem: Attention) -> contextlib.AbstractContextManager:
    """The context to trace a kernel in. 16-bit operands are exact in one pass, whatever is asked."""
    if problem.dtype != "float32" or problem.precision == "default":
        return contextlib.nullcontext()
    # Mosaic has one pass or full precision, nothing between.
    return jax.default_matmul_precision("highest")
