"""Calls Triton kernels from JAX: under jit, shard_map, scan and in custom derivative rules.

A kernel is compiled when the call is lowered, not when it is traced: a call whose outputs are dropped is never
compiled, and shapes can be evaluated without a GPU. At run time there is only jaxlib's own launcher, which is handed
the machine code.
"""

import functools
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import ad, batching, mlir

from attn_tune.kernels.lang.triton.compile import (
    CompiledKernel,
    compile_kernel,
    recording_context,
)
from attn_tune.kernels.lang.triton.image import with_image
from attn_tune.kernels.lang.triton.interpret import interpret, is_interpreted, numpy_dtype
from attn_tune.kernels.lang.triton.launch import ArrayType, CompileOptions, Launch, bind_launch
from attn_tune.kernels.lang.triton.limits import OLDEST_WITH_CLUSTERS
from attn_tune.kernels.lang.triton.target import target_capability, target_context
from attn_tune.schema.errors import UnsupportedError, UsageError

POINTER_ALIGNMENT = 16
# jaxlib's launcher, by the interface that XLA can put into CUDA graphs. In a loop that holds a call which it cannot,
# XLA launches every kernel by itself, and clears the outputs of cuDNN's backward first.
CALL_TARGET = "triton_kernel_call_ffi"
_ASSEMBLER_VARIABLES = ("JAX_TRITON_PTXAS_EXTRA_FLAGS", "JAX_TRITON_PTXAS_DEVICE_DEBUG")

# jax wants these made while nothing is being traced.
target_context()
recording_context()


def triton_call(
    kernel: Any,
    *operands: jax.Array | None,
    out_types: Sequence[jax.ShapeDtypeStruct],
    grid: Sequence[int],
    constexprs: Mapping[str, Any] | None = None,
    num_warps: int = 4,
    num_stages: int = 3,
    num_ctas: int = 1,
    maxnreg: int | None = None,
    name: str | None = None,
    zeroed: Sequence[bool] = (),
    input_output_aliases: Mapping[int, int] | None = None,
    cluster: int = 1,
) -> tuple[jax.Array, ...]:
    """One launch of ``kernel``; its outputs.

    The kernel's parameters are a pointer for each operand, a pointer for each output, then constexprs only, which
    take shapes and strides too. Arrays are dense and row-major, and aligned to 16 bytes. Outputs start uninitialised.
    A kernel that was decorated while ``TRITON_INTERPRET=1`` runs in Triton's interpreter, on any backend.

    Args:
      operands: arrays; the parameter of one that is None is the constant None.
      grid: one to three sizes.
      constexprs: values by parameter name; those with a default may be left out.
      name: what profilers show; the kernel's own name otherwise.
      zeroed: for each output, whether it is set to zero before the kernel, for kernels that add with atomics.
      input_output_aliases: the output that is made in place of an operand, by number; both have one shape and dtype.
        The two parameters point at one buffer, which starts with the operand's values. XLA copies the operand first
        if it is used again; under ``jit`` with the operand donated it is not copied.
      cluster: programs in a row, along the grid's first axis, that run at once and can wait for one another. Hopper and
        later have them; the interpreter does not.

    Raises:
      UsageError: the call does not fit the kernel's parameters or its outputs. When tracing.
      UnsupportedError: there is no NVIDIA GPU to compile for. When lowering, as the next two.
      CompileError: Triton or ptxas refuses the kernel.
      OutOfResources: one block needs more than the GPU has.
    """
    launch = bind_launch(
        kernel,
        [operand is not None for operand in operands],
        out_types,
        grid=grid,
        constexprs=constexprs or {},
        options=CompileOptions(num_warps=num_warps, num_stages=num_stages, num_ctas=num_ctas, maxnreg=maxnreg),
        name=name,
        zeroed=zeroed,
        aliases=input_output_aliases,
        cluster=cluster,
    )
    arrays = [operand for operand in operands if operand is not None]
    if not arrays:
        raise UsageError(f"kernel {launch.name!r} was called without any array")
    for operand, output in launch.aliases:
        made, given = launch.out_types[output], arrays[operand]
        if (made.shape, made.dtype) != (given.shape, str(given.dtype)):
            raise UsageError(
                f"kernel {launch.name!r} cannot make output {output}, {made.dtype}{list(made.shape)}, in place of an "
                f"operand that is {given.dtype}{list(given.shape)}"
            )
    return tuple(_triton_call_p.bind(*arrays, launch=launch))


_triton_call_p = Primitive("triton_call")
_triton_call_p.multiple_results = True


@functools.partial(jax.jit, static_argnames="launch")
def _call_jitted(*arrays: jax.Array, launch: Launch) -> list[jax.Array]:
    return _triton_call_p.bind(*arrays, launch=launch)


@_triton_call_p.def_impl
def _call_eagerly(*arrays: jax.Array, launch: Launch) -> list[jax.Array]:
    # Under jax.disable_jit the jitted call would come straight back here.
    with jax.disable_jit(False):
        return _call_jitted(*arrays, launch=launch)


@_triton_call_p.def_abstract_eval
def _output_types(*operands: Any, launch: Launch) -> list[Any]:
    # Under shard_map an output varies over every mesh axis that some operand varies over.
    like = operands[0]
    varying = frozenset().union(*(operand.manual_axis_type.varying for operand in operands))
    manual = type(like.manual_axis_type)(varying=varying)
    return [
        like.update(
            shape=out.shape,
            dtype=jax.numpy.dtype(out.dtype),
            weak_type=False,
            manual_axis_type=manual,
            sharding=like.sharding.update(spec=jax.sharding.PartitionSpec(*[None] * len(out.shape))),
        )
        for out in launch.out_types
    ]


def _lower_for_cuda(ctx: Any, *operands: Any, launch: Launch) -> Any:
    if is_interpreted(launch.kernel):
        return _lower_interpreted(ctx, *operands, launch=launch)
    in_dtypes = tuple(str(aval.dtype) for aval in ctx.avals_in)
    capability = target_capability()
    if launch.cluster > 1 and capability < OLDEST_WITH_CLUSTERS:
        raise UnsupportedError(f"kernel {launch.name!r} needs clusters, which sm_{capability} does not have")
    compiled = compile_kernel(launch, in_dtypes, capability)
    # The launcher would allocate scratch memory itself, which no graph inside a graph may do.
    scratch = math.prod(launch.grid) * compiled.num_ctas * compiled.scratch_bytes
    if scratch:
        room = ShapedArray((scratch,), np.dtype(np.uint8))
        ctx = ctx.replace(avals_out=[*ctx.avals_out, room])
    message = zlib.compress(_serialize(launch, compiled))
    lower = jax.ffi.ffi_lowering(CALL_TARGET, operand_output_aliases=dict(launch.aliases))
    given = _behind_barriers(operands) if launch.aliases else operands
    return _behind_barriers(lower(ctx, *given, opaque=message)[: len(launch.out_types)])


def _behind_barriers(values: Sequence[Any]) -> list[Any]:
    """The MLIR values, each behind a barrier that XLA drops once it has fused; nothing is copied for one.

    In a loop XLA (of JAX 0.11.2 at least) moves slices of operands and updates by results into the call. It then
    forgets what is made in place, so that caches lose what they held; and where a result has another user besides the
    update, as residuals in a scan over layers have, it runs the call twice.
    """
    return [stablehlo.OptimizationBarrierOp([value]).results[0] for value in values]


def _lower_elsewhere(ctx: Any, *operands: Any, launch: Launch) -> Any:
    if is_interpreted(launch.kernel):
        return _lower_interpreted(ctx, *operands, launch=launch)
    platforms = ", ".join(ctx.module_context.platforms)
    raise UnsupportedError(
        f"kernel {launch.name!r} is written in Triton and runs on NVIDIA GPUs, not on {platforms}; "
        "set TRITON_INTERPRET=1 before Triton is imported to run it anywhere, slowly"
    )


def _lower_interpreted(ctx: Any, *operands: Any, launch: Launch) -> Any:
    if launch.cluster > 1:
        raise UnsupportedError(
            f"kernel {launch.name!r} has programs that wait for one another; the interpreter runs one after the other"
        )

    # Not jax.pure_callback, which puts the operands back on a device: on a busy CPU that waits for itself.
    def run(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        return interpret(launch, arrays)

    outputs, _, _ = mlir.emit_python_callback(
        ctx, run, None, operands, ctx.avals_in, ctx.avals_out, has_side_effect=False
    )
    return outputs


mlir.register_lowering(_triton_call_p, _lower_for_cuda, platform="cuda")
mlir.register_lowering(_triton_call_p, _lower_elsewhere)


def _serialize(launch: Launch, compiled: CompiledKernel) -> bytes:
    """The launch as jaxlib's launcher reads it: a pointer a parameter, and how many bytes of it to set to zero."""
    from jaxlib import gpu_triton

    if not hasattr(gpu_triton, "TritonKernel"):
        raise UnsupportedError(
            "jax has no CUDA plugin here, which Triton kernels are launched by; pip install 'attn-tune[cuda]'"
        )
    kernel = gpu_triton.TritonKernel(
        compiled.name,
        compiled.num_warps,
        compiled.num_ctas * launch.cluster,
        compiled.shared_bytes,
        compiled.ptx,
        "",
        compiled.capability,
    )
    operands = len(launch.pointer_names) - len(launch.out_types)
    outputs = zip(launch.out_types, launch.zeroed, strict=True)
    sizes = [0] * operands + [_size(out) if zero else 0 for out, zero in outputs]
    pointers = [gpu_triton.create_array_parameter(size, POINTER_ALIGNMENT) for size in sizes]
    if compiled.scratch_bytes:
        # Triton's last parameters are its scratch memory and a profiler's; the launcher adds null pointers for both.
        # One of these is left over here, and CUDA reads no more parameters than the kernel has.
        pointers.append(gpu_triton.create_array_parameter(0, compiled.scratch_align))
    # The launcher has a cluster for each element of its grid.
    x, y, z = launch.grid
    message = gpu_triton.TritonKernelCall(kernel, x // launch.cluster, y, z, pointers).to_proto(launch.name, b"")
    # Flags for jaxlib's own assembler only count where it assembles the PTX.
    if any(os.environ.get(name) for name in _ASSEMBLER_VARIABLES):
        return message
    return with_image(message, compiled.name, compiled.shared_bytes, compiled.cubin)


def _size(out: ArrayType) -> int:
    return int(np.prod(out.shape, dtype=np.int64)) * numpy_dtype(out.dtype).itemsize


def _batch_in_sequence(operands: Any, axes: Any, *, launch: Launch) -> Any:
    """One launch for each element: right, and slow; an op that folds the axis into its batch does better."""
    mapped = {i: axis for i, axis in enumerate(axes) if axis is not None}
    moved = [jax.numpy.moveaxis(operands[i], axis, 0) for i, axis in mapped.items()]

    def one(elements: Sequence[jax.Array]) -> list[jax.Array]:
        arrays = list(operands)
        for i, element in zip(mapped, elements, strict=True):
            arrays[i] = element
        return _triton_call_p.bind(*arrays, launch=launch)

    return jax.lax.map(one, moved), [0] * len(launch.out_types)


batching.primitive_batchers[_triton_call_p] = _batch_in_sequence


def _no_derivative(*_: Any, launch: Launch, **__: Any) -> Any:
    raise UnsupportedError(f"kernel {launch.name!r} has no derivative of its own; differentiate the op that calls it")


ad.primitive_jvps[_triton_call_p] = _no_derivative
