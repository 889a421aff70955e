"""Triton calls with outputs that start at zero: for kernels whose programs add to one place with atomics.

jaxlib's launcher sets such an output to zero on the stream, right before the kernel: no operand that XLA might share
with another use of it, and no second program.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from attn_tune.kernels._common import triton_call as plain
from attn_tune.kernels._common.triton_interpret import interpret, is_interpreted
from attn_tune.kernels._common.triton_launch import CompileOptions, Launch, bind_launch
from attn_tune.schema.errors import UsageError


@dataclass(frozen=True)
class ZeroedLaunch:
    """A launch; ``zeroed`` says for each output whether it starts at zero. The others start uninitialised."""

    launch: Launch
    zeroed: tuple[bool, ...]


def triton_call_zeroed(
    kernel: Any,
    *operands: jax.Array | None,
    out_types: Sequence[jax.ShapeDtypeStruct],
    zeroed: Sequence[bool],
    grid: Sequence[int],
    constexprs: dict[str, Any],
    options: CompileOptions,
    name: str,
) -> tuple[jax.Array, ...]:
    """One launch of ``kernel``; as ``triton_call``, and those outputs that ``zeroed`` marks start at zero.

    Raises:
      As ``triton_call``; UsageError too if ``zeroed`` does not have one flag an output.
    """
    if len(zeroed) != len(out_types):
        raise UsageError(f"kernel {name!r} has {len(out_types)} outputs, but zeroed={zeroed!r}")
    launch = bind_launch(
        kernel,
        [operand is not None for operand in operands],
        out_types,
        grid=grid,
        constexprs=constexprs,
        options=options,
        name=name,
    )
    arrays = [operand for operand in operands if operand is not None]
    call = ZeroedLaunch(launch, tuple(bool(zero) for zero in zeroed))
    return tuple(_zeroed_call_p.bind(*arrays, call=call))


_zeroed_call_p = Primitive("triton_call_zeroed")
_zeroed_call_p.multiple_results = True


@functools.partial(jax.jit, static_argnames="call")
def _call_jitted(*arrays: jax.Array, call: ZeroedLaunch) -> list[jax.Array]:
    return _zeroed_call_p.bind(*arrays, call=call)


@_zeroed_call_p.def_impl
def _call_eagerly(*arrays: jax.Array, call: ZeroedLaunch) -> list[jax.Array]:
    # Under jax.disable_jit the jitted call would come straight back here.
    with jax.disable_jit(False):
        return _call_jitted(*arrays, call=call)


@_zeroed_call_p.def_abstract_eval
def _output_types(*operands: Any, call: ZeroedLaunch) -> list[Any]:
    return plain._output_types(*operands, launch=call.launch)


def _lower_for_cuda(ctx: Any, *operands: Any, call: ZeroedLaunch) -> Any:
    if is_interpreted(call.launch.kernel):
        return _lower_interpreted(ctx, *operands, call=call)
    return plain.lower_launch(ctx, operands, call.launch, zeroed=call.zeroed)


def _lower_elsewhere(ctx: Any, *operands: Any, call: ZeroedLaunch) -> Any:
    if is_interpreted(call.launch.kernel):
        return _lower_interpreted(ctx, *operands, call=call)
    # Says what is missing here, as for any other Triton kernel.
    return plain._lower_elsewhere(ctx, *operands, launch=call.launch)


def _lower_interpreted(ctx: Any, *operands: Any, call: ZeroedLaunch) -> Any:
    def run(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        return interpret(call.launch, arrays, zeroed=call.zeroed)

    outputs, _, _ = mlir.emit_python_callback(
        ctx, run, None, operands, ctx.avals_in, ctx.avals_out, has_side_effect=False
    )
    return outputs


mlir.register_lowering(_zeroed_call_p, _lower_for_cuda, platform="cuda")
mlir.register_lowering(_zeroed_call_p, _lower_elsewhere)


def _batch_in_sequence(operands: Any, axes: Any, *, call: ZeroedLaunch) -> Any:
    """One launch for each element, as for any other Triton kernel."""
    mapped = {i: axis for i, axis in enumerate(axes) if axis is not None}
    moved = [jax.numpy.moveaxis(operands[i], axis, 0) for i, axis in mapped.items()]

    def one(elements: Sequence[jax.Array]) -> list[jax.Array]:
        arrays = list(operands)
        for i, element in zip(mapped, elements, strict=True):
            arrays[i] = element
        return _zeroed_call_p.bind(*arrays, call=call)

    return jax.lax.map(one, moved), [0] * len(call.launch.out_types)


batching.primitive_batchers[_zeroed_call_p] = _batch_in_sequence


def _no_derivative(*_: Any, call: ZeroedLaunch, **__: Any) -> Any:
    return plain._no_derivative(launch=call.launch)


ad.primitive_jvps[_zeroed_call_p] = _no_derivative
