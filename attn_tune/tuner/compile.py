"""Compiling one config, apart from running it: what comes out can be described, stored and sent.

Tracing and lowering, where all the time goes, can be done by a process without a device (``lower_config``); the one
that holds the device does the rest (``load_config``). The description (``Artifact``) is plain data, so that configs
that lower to the same program can be told by their ``code_digest``.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attn_tune.kernels.registry import get_kernel
from attn_tune.kernels.spec import Outputs, Search, load
from attn_tune.schema.config import config_from_dict
from attn_tune.schema.digest import digest_text
from attn_tune.schema.trial import Resources
from attn_tune.tuner.protocol import ConfigRef, Lowered
from attn_tune.tuner.side_effects import (
    find_callback,
    refuse_callbacks,
    unchanged_configuration,
)

# Where the program was written is not what it does. Triton's configuration holds such places too, in binary.
_PLACES = re.compile(r"^#loc.*\n| loc\((?:[^()]|\([^()]*\))*\)", re.MULTILINE)
_OPAQUE = re.compile(r'(?:backend_config|opaque) = "[^"]*"')


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """What compiling one config made. Times in milliseconds; ``temp_bytes`` is scratch memory on the device."""

    ref: ConfigRef
    lower_ms: float
    compile_ms: float
    resources: Resources = field(default_factory=Resources)
    temp_bytes: int | None = None

    @property
    def total_ms(self) -> float:
        """Tracing, lowering and compiling together."""
        return self.lower_ms + self.compile_ms


@dataclass(frozen=True, kw_only=True)
class Executable:
    """A compiled config: ``call(inputs) -> {output: array}``."""

    artifact: Artifact
    call: Callable[[Any], Outputs]


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
        return {name: outputs[name] for name in names or outputs if name in outputs}

    return function


def part_outputs(search: Search, part: str) -> tuple[str, ...]:
    """The outputs of a part; empty for all of them."""
    return tuple(search.outputs.get(part, ()))


def compile_config(ref: ConfigRef, inputs: Any) -> Executable:
    """Traces, lowers and compiles a config for ``inputs`` (arrays, or their shapes).

    Raises:
      UnsupportedError: it calls back into Python, or changes JAX's configuration.
    """
    import jax

    function = jax.jit(part_function(ref))
    start = time.perf_counter()
    with unchanged_configuration(), _recorder() as recorded:
        lowered = function.trace(inputs).lower()
    lower_ms = (time.perf_counter() - start) * 1e3
    text = lowered.as_text()
    refuse_callbacks(text, get_kernel(ref.kernel).backend)
    resources = resources_of(recorded, text)
    compiled, artifact = _finish(ref, lowered, resources, lower_ms)
    return Executable(artifact=artifact, call=compiled)


def lower_config(ref: ConfigRef, inputs: Any, capability: int) -> Lowered:
    """Traces and lowers a config for an NVIDIA GPU that need not be here.

    Args:
      inputs: arrays, or their shapes.
      capability: ``10 * major + minor``.

    Raises:
      UnsupportedError: as ``compile_config``.
    """
    import jax
    from jax import export

    from attn_tune.kernels.lang.triton.call import CALL_TARGET
    from attn_tune.kernels.lang.triton.target import compile_target

    leaves, tree = jax.tree.flatten(inputs)
    function = part_function(ref)
    start = time.perf_counter()
    with unchanged_configuration(), compile_target(capability), _recorder() as recorded:
        exported = export.export(
            jax.jit(lambda *leaves: function(jax.tree.unflatten(tree, leaves))),
            platforms=("cuda",),
            disabled_checks=(export.DisabledSafetyCheck.custom_call(CALL_TARGET),),
        )(*leaves)
    refuse_callbacks(exported.mlir_module(), get_kernel(ref.kernel).backend)
    program = bytes(exported.serialize())
    lower_ms = (time.perf_counter() - start) * 1e3
    resources = resources_of(recorded, exported.mlir_module())
    return Lowered(program=program, resources=resources, lower_ms=lower_ms)


def load_config(ref: ConfigRef, lowered: Lowered) -> Executable:
    """Does what is left of compiling a config that another process lowered."""
    import jax
    from jax import export

    exported = export.deserialize(bytearray(lowered.program))
    again = jax.jit(exported.call).lower(*exported.in_avals)
    compiled, artifact = _finish(ref, again, lowered.resources, lowered.lower_ms)
    return Executable(artifact=artifact, call=lambda inputs: compiled(*jax.tree.leaves(inputs)))


def _finish(
    ref: ConfigRef, lowered: Any, resources: Resources, lower_ms: float
) -> tuple[Any, Artifact]:
    start = time.perf_counter()
    compiled = lowered.compile()
    artifact = Artifact(
        ref=ref,
        lower_ms=lower_ms,
        compile_ms=(time.perf_counter() - start) * 1e3,
        resources=resources,
        temp_bytes=_temp_bytes(compiled),
    )
    return compiled, artifact


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
    """Collects what the Triton bridge compiles meanwhile; nothing where Triton is not installed."""
    import importlib.util

    name = "attn_tune.kernels.lang.triton.compile"
    if importlib.util.find_spec("triton") is None or importlib.util.find_spec(name) is None:
        yield []
        return
    with load(f"{name}:record_compiles")() as recorded:
        yield recorded


def _temp_bytes(compiled: Any) -> int | None:
    analysis = compiled.memory_analysis()
    if isinstance(analysis, Mapping):
        return analysis.get("temp_size_in_bytes")
    return getattr(analysis, "temp_size_in_bytes", None)
