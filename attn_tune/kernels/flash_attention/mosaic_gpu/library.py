"""JAX's Mosaic GPU attention with a softmax scale and for both 16-bit types.

The library's functions scale no logits and allocate shared memory for float16. Both are names that they look up when
they are traced: the factor ``math.log2(math.e)`` of every logit, and ``jnp.float16``. A function is run here with those
two names bound to other values; the library itself is left as it is.
"""

import inspect
import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
from jax.experimental.pallas.ops.gpu import attention_mgpu

from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.errors import UnsupportedError


def forward_of(problem: Problem, *, pipeline_emitter: bool) -> Callable[..., Any]:
    """``(q, k, v, config, save_residuals) -> (out, (lse,))``; the lse is binary."""
    if pipeline_emitter:
        jitted = attention_mgpu.attention_with_pipeline_emitter
        return _bound(inspect.unwrap(jitted), problem, bodies=1)
    return _bound(attention_mgpu._attention_forward, problem, bodies=1)


def backward_of(problem: Problem) -> Callable[..., Any]:
    """``(config, save_residuals, (q, k, v, out, lse), dout) -> (dq, dk, dv)``, of logits that are scaled already."""
    return _bound(attention_mgpu._attention_bwd, problem, bodies=2)


class _Names:
    """A module, some of whose names have other values."""

    def __init__(self, module: types.ModuleType, **names: Any):
        self.__dict__.update(names)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _bound(function: Any, problem: Problem, *, bodies: int) -> Callable[..., Any]:
    found = sum("log2" in code.co_names for code in _codes(function.__code__))
    if found != bodies:
        raise UnsupportedError(
            f"{function.__name__} of this release of JAX takes {found} binary logarithms, not {bodies}: its logits "
            "cannot be scaled; use another kernel"
        )
    names = {
        "math": _Names(math, log2=lambda x: problem.scale * math.log2(x)),
        "jnp": _Names(jnp, float16=jnp.dtype(problem.dtype).type),
    }
    return types.FunctionType(function.__code__, function.__globals__ | names, function.__name__, function.__defaults__)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
