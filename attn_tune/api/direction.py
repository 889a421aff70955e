"""One direction of one call: choose its kernel, mark it in the program, run it on one device or on each of several."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array

from attn_tune.api.declaration import Call, OutputsError, operands_of
from attn_tune.api.derivatives import guarded
from attn_tune.api.folding import fold_vmap
from attn_tune.api.meshes.axes import Axes, is_partitioned
from attn_tune.api.meshes.deferred import deferred, varying_axes
from attn_tune.api.meshes.partitioned import partitioned
from attn_tune.api.meshes.sharding import explicit_mesh, sharded_run
from attn_tune.api.meshes.shards import run_shard
from attn_tune.api.request import Request
from attn_tune.kernels.lang.triton.limits import CompileError, OutOfResources
from attn_tune.ops.cached import cached
from attn_tune.ops.contract import load
from attn_tune.ops.marker import cut_name, marked, named_jit
from attn_tune.ops.registry import get_op
from attn_tune.runtime.active.layers import in_open_blocks, viewing
from attn_tune.runtime.active.view import View
from attn_tune.runtime.lookup import dispatch
from attn_tune.runtime.lookup.answer import Rung
from attn_tune.schema.config import config_to_dict, config_to_json
from attn_tune.schema.environment import Grade
from attn_tune.schema.errors import AttnTuneError, UnsupportedError
from attn_tune.schema.signals import is_of_handler

# Errors of code that calls what another version of a library has otherwise: its names, arguments, arrays, or, of JAX's
# own kernels, what it does not implement. Errors of a device, such as a lack of memory, are none of these.
_ERRORS_OF_CODE = (AssertionError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError)


class _KernelError(Exception):
    """A kernel raised ``error`` as it was traced."""

    def __init__(self, error: Exception):
        self.error = error


def launched(call: Call, problem: Any, request: Request, direction: str, inputs: Any) -> dict[str, Array]:
    """The outputs of one direction, with rules for ``vmap`` and for derivatives.

    Raises:
      UnsupportedError: no kernel, or not the requested one, can do the problem on this device.
    """

    def run(inputs: Any) -> dict[str, Array]:
        return _run(call, problem, request, direction, inputs)

    return guarded(call, problem, direction, fold_vmap(call, problem, in_open_blocks(run)))(inputs)


def _run(call: Call, problem: Any, request: Request, direction: str, inputs: Any) -> dict[str, Array]:
    """Run one direction, on one device or on each of several.

    Under a ``shard_map`` that checks types, the kernel is traced at lowering, because most kernels do not declare over
    which axes their outputs vary. If XLA partitions the program, each device's part is looked up while XLA compiles,
    in the packs that are active now.
    """
    operands = operands_of(inputs)
    problem = call.with_shapes(problem, operands)
    if varying_axes(inputs):
        return _in_manual(call, _launch(call, problem, request, direction), problem)(inputs)
    if call.present(call.indivisible, operands):
        return _launch(call, problem, request, direction)(inputs)
    if explicit_mesh(inputs) is not None:
        # The arrays of the call are cut already (``sharded_by_types``); this is the folded axis of a vmap.
        def on_shard(inputs: Any, axes: Axes, out_specs: Any) -> dict[str, Array]:
            return run_shard(call, lambda x: _run(call, problem, request, direction, x), inputs, axes, out_specs)

        return sharded_run(call, on_shard, problem, inputs)
    partitions = is_partitioned(inputs)
    if partitions is False:
        return _launch(call, problem, request, direction)(inputs)
    # Here, and not while XLA compiles, which makes another error of it.
    view = dispatch.agreed_view()
    run = _in_automatic(call, problem, request, direction, view, bool(partitions))
    return run(inputs)


def _launch(call: Call, problem: Any, request: Request, direction: str) -> Callable[[Any], dict[str, Array]]:
    choice = dispatch.choose(
        call.op,
        direction,
        problem,
        kernel=request.kernels.get(direction),
        config=request.configs.get(direction),
    )
    try:
        kernel: Callable = load(choice.spec.searches[direction].call)
    except Exception as error:  # A broken package may raise anything.
        if is_of_handler(error):
            raise
        return _launch_of_another(call, problem, request, direction, choice.spec.id, error)
    kernel = _checked(kernel, call, choice.spec.id)
    if choice.spec.is_launched_on_gpu:
        kernel = _behind_barriers(kernel, bool(get_op(call.op).in_place(problem, direction)))
    launch = marked(kernel, problem, choice.config, choice.answer.signature, direction)
    kernel_here = dispatch.TriedConfig(choice.spec.id, direction, choice.answer.signature, choice.answer.device, "")
    # A row that was measured with these compilers has been compiled.
    is_verified = choice.answer.rung is Rung.EXACT and choice.answer.grade is Grade.VERIFIED
    is_tried = choice.spec.backend == "triton" and not is_verified and _may_be_another(request, direction)
    return _with_others(launch, call, problem, request, kernel_here, choice.config, is_tried)


@cached
def _with_others(
    launch: Callable,
    call: Call,
    problem: Any,
    request: Request,
    kernel_here: dispatch.TriedConfig,
    config: Any,
    is_tried: bool,
) -> Callable[[Any], dict[str, Array]]:
    """``launch`` of ``config``, or the launch of another where this one fails before it runs.

    The kernel is left out of the process where a library of it turns out not to be importable, or where it does not
    return what the op declares, as untuned ones of other packages may. Of this one question the kernel is left out
    where it raises as it is traced, and its config where the installed Triton cannot compile it for this GPU. Equal
    launches are one function, as those of ``marked`` are: what is made of it is remembered too.

    Args:
      kernel_here: the kernel, with every config, for this question.
      is_tried: whether Triton compiles the config before its first launch.
    """
    is_compiled = not is_tried

    @functools.wraps(launch)
    def run(inputs: Any) -> dict[str, Array]:
        nonlocal is_compiled
        failed = None
        try:
            if not is_compiled:
                from attn_tune.kernels.lang.triton.ahead import compile_traced

                # The call below finds this trace.
                compile_traced(launch.trace(inputs).jaxpr)
                is_compiled = True
            return launch(inputs)
        except (CompileError, OutOfResources) as failure:
            error, failed = failure, kernel_here._replace(config=config_to_json(config_to_dict(config)))
        except _KernelError as failure:
            error, failed = failure.error, kernel_here
        except (ImportError, OutputsError) as failure:
            if is_of_handler(failure):
                raise
            error = failure
        direction, kernel = kernel_here.direction, kernel_here.kernel
        return _launch_of_another(call, problem, request, direction, kernel, error, failed)(inputs)

    return run


def _may_be_another(request: Request, direction: str) -> bool:
    """True unless the caller wants one kernel, or other processes run the same program: all must choose alike."""
    return direction not in request.kernels and direction not in request.configs and jax.process_count() == 1


def _launch_of_another(
    call: Call,
    problem: Any,
    request: Request,
    direction: str,
    kernel: str,
    error: Exception,
    config: dispatch.TriedConfig | None = None,
) -> Callable[[Any], dict[str, Array]]:
    """The launch of another kernel than ``kernel``, ``"op/name"``, which raised ``error`` and is asked no more here.

    Args:
      config: the config of a question that alone is asked no more.

    Raises:
      Exception: ``error``, where it may be no other, or where no other can do a question of ``config``.
    """
    if not _may_be_another(request, direction):
        raise error
    if config is None:
        dispatch.leave_out(kernel, error)
        return _launch(call, problem, request, direction)
    dispatch.leave_out_config(config, error)
    try:
        return _launch(call, problem, request, direction)
    except UnsupportedError:
        dispatch.take_in_config(config)
        raise error from None


@cached
def _checked(kernel: Callable, call: Call, name: str) -> Callable:
    """``kernel``, called ``name`` in messages, which returns the outputs that the op needs.

    It raises ``OutputsError`` if these are others, and ``_KernelError`` if its code fails.
    """

    def checked(problem: Any, config: Any, inputs: Any) -> dict[str, Array]:
        try:
            # Of kernels, most of which are not ours, the caller's strictness is not the measure.
            with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
                made = kernel(problem, config, inputs)
        except (SystemExit, *_ERRORS_OF_CODE) as error:
            if is_of_handler(error) or (isinstance(error, AttnTuneError) and not isinstance(error, UnsupportedError)):
                raise
            is_exit = isinstance(error, SystemExit)
            raise _KernelError(RuntimeError(f"it called exit({error.code})") if is_exit else error) from error
        return call.checked(name, problem, inputs, made)

    return checked


@cached
def _behind_barriers(kernel: Callable, in_place: bool) -> Callable:
    """``kernel`` with barriers between what XLA cannot look into and what surrounds it.

    In a loop XLA (of JAX 0.11.2 at least) moves slices and updates into such a call, runs it twice where a result has
    two users, and forgets what is updated in place. Our Triton calls have barriers of their own; the kernels of
    libraries and of other packages have none.
    """

    def guarded(problem: Any, config: Any, inputs: Any) -> Any:
        given = jax.lax.optimization_barrier(inputs) if in_place else inputs
        return jax.lax.optimization_barrier(kernel(problem, config, given))

    return guarded


@cached
def _in_manual(call: Call, launch: Callable, problem: Any) -> Callable[[Any], dict[str, Array]]:
    def run(inputs: Any) -> dict[str, Array]:
        # Another kernel may have to answer, while XLA compiles, for one whose library cannot be imported.
        return deferred(in_open_blocks(launch), call.output_types(problem, inputs))(inputs)

    return named_jit(run, launch.__name__)


@cached
def _in_automatic(
    call: Call, problem: Any, request: Request, direction: str, view: View, is_certain: bool
) -> Callable[[Any], dict[str, Array]]:
    def here(inputs: Any) -> dict[str, Array]:
        local = call.with_shapes(problem, operands_of(inputs))
        return _launch(call, local, request, direction)(inputs)

    def on_shard(inputs: Any, axes: Axes, out_specs: Any) -> dict[str, Array]:
        with viewing(view):
            return run_shard(call, here, inputs, axes, out_specs)

    def run(inputs: Any) -> dict[str, Array]:
        # No device runs the whole problem, so a lookup of it would only be a false miss.
        whole = deferred(in_open_blocks(here), call.output_types(problem, inputs)) if is_certain else here
        return partitioned(call, whole, on_shard, inputs)

    signature = get_op(call.op).to_signature(problem)
    return named_jit(run, cut_name(signature.text, direction, view.digest[-12:]))
