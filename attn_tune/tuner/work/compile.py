"""Compiling one config, apart from running it.

Tracing and lowering, where all the time goes, can be done by a process without a device (``lower_config``); the one
that holds the device does the rest (``load_config``). Configs that lower to the same program have one ``code_digest``.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_tune.kernels.registry import get_kernel
from attn_tune.kernels.spec import Search
from attn_tune.ops.contract import Outputs, load
from attn_tune.ops.registry import get_op
from attn_tune.schema.config import config_from_dict
from attn_tune.schema.digest import digest_text
from attn_tune.schema.direction import WHOLE
from attn_tune.schema.trial import Resources
from attn_tune.tuner.protocol import ConfigRef, Lowered
from attn_tune.tuner.work import cute_programs
from attn_tune.tuner.work.in_place import donated_places, fresh_copies
from attn_tune.tuner.work.mesh import mesh_for
from attn_tune.tuner.work.side_effects import (
    find_callback,
    refuse_callbacks,
    unchanged_configuration,
)
from attn_tune.tuner.work.timers.timer import Timed

# Where the program was written is not what it does. Triton's configuration holds such places too, in binary.
_PLACES = re.compile(r"^#loc.*\n| loc\((?:[^()]|\([^()]*\))*\)", re.MULTILINE)
_OPAQUE = re.compile(r'(?:backend_config|opaque) = "[^"]*"')


@dataclass(frozen=True, kw_only=True)
class Executable:
    """A compiled config.

    Attributes:
      resources: as far as the compilers tell them, and the digest of the program.
      compile_ms: milliseconds of tracing, lowering and compiling together.
      launch: ``inputs -> {output: array}``. It consumes the operands that it updates in place.
      in_place: the places of these among the leaves of the inputs.
    """

    resources: Resources
    compile_ms: float
    launch: Callable[[Any], Outputs]
    in_place: tuple[int, ...] = ()

    def fresh(self, inputs: Any) -> Any:
        """``inputs`` for one launch: with copies of the operands that it consumes."""
        return fresh_copies(inputs, self.in_place)

    def call(self, inputs: Any) -> Outputs:
        """The outputs for ``inputs``, which stay as they are."""
        return self.launch(self.fresh(inputs))

    def timed(self, inputs: Any) -> Timed:
        """The same call for a timer, which makes the copies before the clock runs."""
        if not self.in_place:
            return Timed(run=lambda: self.launch(inputs))
        return Timed(run=self.launch, refresh=lambda: self.fresh(inputs))


def part_function(ref: ConfigRef) -> Callable[[Any], Outputs]:
    """``inputs -> outputs`` of the part alone.

    What the part does not make is dropped, so that under jit the other launches are dead code.
    """
    spec = get_kernel(ref.kernel)
    search = spec.searches[ref.direction]
    config = config_from_dict(search.config, ref.config)
    names = part_outputs(search, ref.part)
    problem = ref.runs_on
    # Loaded here, because changes to JAX that come from importing a library are not the config's.
    call = load(search.call)

    def function(inputs: Any) -> Outputs:
        outputs = call(problem, config, inputs)
        if not isinstance(outputs, Mapping):
            raise TypeError(f"{search.call} must return a dict of outputs by name, not a {type(outputs).__name__}")
        return {name: outputs[name] for name in names or outputs if name in outputs}

    return function


def part_outputs(search: Search, part: str) -> tuple[str, ...]:
    """The outputs of a part; empty for all of them."""
    return () if part == WHOLE else tuple(search.outputs[part])


def compile_config(ref: ConfigRef, inputs: Any) -> Executable:
    """Trace, lower and compile a config for ``inputs`` (arrays, or their shapes).

    Raises:
      UnsupportedError: it calls back into Python, or changes JAX's configuration.
    """
    import jax

    function, backend = part_function(ref), get_kernel(ref.kernel).backend
    op = get_op(ref.signature.op)
    in_place = donated_places(op, ref.runs_on, ref.direction, inputs)
    # Donation is by argument: with it, each leaf is one.
    leaves, tree = jax.tree.flatten(inputs) if in_place else ([inputs], None)

    def of_leaves(*leaves: Any) -> Outputs:
        return function(jax.tree.unflatten(tree, leaves))

    jitted = jax.jit(of_leaves, donate_argnums=in_place) if in_place else jax.jit(function)
    start = time.perf_counter()
    plain = cute_programs.plain_errors(backend)
    with unchanged_configuration(), _recorder() as recorded, mesh_for(op, ref.runs_on), plain:
        lowered = jitted.trace(*leaves).lower()
    lower_ms = (time.perf_counter() - start) * 1e3
    text = lowered.as_text()
    refuse_callbacks(text, backend)
    resources = resources_of(recorded, text)
    compiled, compile_ms = _finish(lowered, lower_ms)
    launch = (lambda inputs: compiled(*jax.tree.leaves(inputs))) if in_place else compiled
    return Executable(resources=resources, compile_ms=compile_ms, launch=launch, in_place=in_place)


def lower_config(ref: ConfigRef, inputs: Any, capability: int) -> Lowered:
    """Trace and lower a config for an NVIDIA GPU that need not be here.

    Args:
      inputs: arrays, or their shapes.
      capability: ``10 * major + minor``.

    Raises:
      UnsupportedError: as ``compile_config``.
    """
    import jax
    from jax import export

    from attn_tune.kernels.lang.triton.target import compile_target

    backend = get_kernel(ref.kernel).backend
    leaves, tree = jax.tree.flatten(inputs)
    function = part_function(ref)
    in_place = donated_places(get_op(ref.signature.op), ref.runs_on, ref.direction, inputs)
    start = time.perf_counter()
    plain = cute_programs.plain_errors(backend)
    with unchanged_configuration(), compile_target(capability), _recorder() as recorded, plain:
        exported = export.export(
            jax.jit(lambda *leaves: function(jax.tree.unflatten(tree, leaves)), donate_argnums=in_place),
            platforms=("cuda",),
            disabled_checks=_export_checks(backend),
        )(*leaves)
    refuse_callbacks(exported.mlir_module(), backend)
    program = bytes(exported.serialize())
    lower_ms = (time.perf_counter() - start) * 1e3
    resources = resources_of(recorded, exported.mlir_module())
    return Lowered(program=program, resources=resources, lower_ms=lower_ms, in_place=in_place, backend=backend)


def load_config(lowered: Lowered) -> Executable:
    """Do what is left of compiling a config that another process lowered."""
    import jax
    from jax import export

    if lowered.backend == cute_programs.BACKEND:
        cute_programs.register()
    exported = export.deserialize(bytearray(lowered.program))
    again = jax.jit(exported.call, donate_argnums=lowered.in_place).lower(*exported.in_avals)
    compiled, compile_ms = _finish(again, lowered.lower_ms)
    return Executable(
        resources=lowered.resources,
        compile_ms=compile_ms,
        launch=lambda inputs: compiled(*jax.tree.leaves(inputs)),
        in_place=lowered.in_place,
    )


def _export_checks(backend: str) -> Sequence[Any]:
    """The checks that would refuse to export a call of a kernel of this backend."""
    from jax import export

    from attn_tune.kernels.lang.triton.call import CALL_TARGET

    if backend == cute_programs.BACKEND:
        return cute_programs.export_checks()
    return (export.DisabledSafetyCheck.custom_call(CALL_TARGET),)


def _finish(lowered: Any, lower_ms: float) -> tuple[Any, float]:
    """The compiled program, and the milliseconds from its trace on."""
    start = time.perf_counter()
    compiled = lowered.compile()
    return compiled, lower_ms + (time.perf_counter() - start) * 1e3


def resources_of(recorded: Sequence[Any], program: str) -> Resources:
    """The most that any one launch needs, over the kernels that were compiled, and the digest of the program.

    A program that calls back into Python has no digest: what it does is not in it.

    Args:
      program: the text of the lowered module, for the digest.
    """

    def most(name: str) -> int | None:
        values = [v for k in recorded if (v := getattr(k, name, None)) is not None]
        return max(values, default=None)

    launches = getattr(recorded, "launches", ())
    if launches:
        program = _OPAQUE.sub("", program)
    code = "\n".join((_PLACES.sub("", program), *launches))
    return Resources(
        shared_bytes=most("shared_bytes"),
        registers=most("registers"),
        spill_bytes=most("spill_bytes"),
        code_digest="" if find_callback(program) else digest_text(code),
    )


@contextlib.contextmanager
def _recorder() -> Iterator[Sequence[Any]]:
    """Collect what the Triton bridge compiles meanwhile; nothing where Triton is not installed."""
    import importlib.util

    name = "attn_tune.kernels.lang.triton.compile"
    if importlib.util.find_spec("triton") is None or importlib.util.find_spec(name) is None:
        yield []
        return
    with load(f"{name}:record_compiles")() as recorded:
        yield recorded
