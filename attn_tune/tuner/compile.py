"""Compiling one config, apart from running it: what comes out can be described, stored and sent.

The description (``Artifact``) is plain data, so that a pool of compile processes can stand before the process that
holds the device, and so that configs that lower to the same program can be told by their ``code_digest``.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from attn_tune.kernels.registry import get_kernel, get_op
from attn_tune.kernels.spec import Outputs, Problem, Search, load
from attn_tune.schema.config import config_from_dict
from attn_tune.schema.digest import digest_text
from attn_tune.schema.trial import Resources
from attn_tune.tuner.protocol import ConfigRef


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


def part_function(ref: ConfigRef, problem: Problem) -> Callable[[Any], Outputs]:
    """``inputs -> outputs`` of the part alone.

    What the part does not make is dropped, so that under jit the other launches are dead code.
    """
    spec = get_kernel(ref.kernel)
    search = spec.searches[ref.direction]
    config = config_from_dict(search.config, ref.config)
    names = part_outputs(search, ref.part)

    def function(inputs: Any) -> Outputs:
        outputs = load(search.call)(problem, config, inputs)
        return {name: outputs[name] for name in names or outputs if name in outputs}

    return function


def part_outputs(search: Search, part: str) -> tuple[str, ...]:
    """The outputs of a part; empty for all of them."""
    return tuple(search.outputs.get(part, ()))


def compile_config(ref: ConfigRef, inputs: Any, problem: Problem | None = None) -> Executable:
    """Traces, lowers and compiles a config for ``inputs`` (arrays, or their shapes).

    Args:
      problem: another problem to run the config on than the signature's.
    """
    import jax

    if problem is None:
        problem = get_op(ref.signature.op).from_signature(ref.signature)
    function = jax.jit(part_function(ref, problem))
    start = time.perf_counter()
    with _recorder() as recorded:
        lowered = function.trace(inputs).lower()
    lowered_at = time.perf_counter()
    compiled = lowered.compile()
    done = time.perf_counter()
    artifact = Artifact(
        ref=ref,
        lower_ms=(lowered_at - start) * 1e3,
        compile_ms=(done - lowered_at) * 1e3,
        resources=resources_of(recorded, digest_text(lowered.as_text())),
        temp_bytes=_temp_bytes(compiled),
    )
    return Executable(artifact=artifact, call=compiled)


def resources_of(recorded: list[Any], code_digest: str) -> Resources:
    """The most that any one launch needs, over the kernels that were compiled."""

    def most(name: str) -> int | None:
        values = [v for k in recorded if (v := getattr(k, name, None)) is not None]
        return max(values, default=None)

    return Resources(
        shared_bytes=most("shared_bytes"),
        registers=most("registers"),
        spill_bytes=most("spill_bytes"),
        code_digest=code_digest,
    )


@contextlib.contextmanager
def _recorder() -> Iterator[list[Any]]:
    """Collects what the Triton bridge compiles meanwhile; nothing where Triton is not installed."""
    import importlib.util

    name = "attn_tune.kernels._common.triton_compile"
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
