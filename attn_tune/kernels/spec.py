"""What an op and a kernel declare about themselves. Importing a spec loads neither jax nor triton.

An *op* says what is computed: its problem type, its signature, its inputs, its reference and its cost. A *kernel*
says how: its configs, its limits and where its code is. Everything that runs on arrays is named by a
``"module:function"`` path and imported on first use.
"""

import functools
import importlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attn_tune.schema.device import Device
from attn_tune.schema.environment import Environment
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, Signature
from attn_tune.schema.trial import WHOLE

type Problem = Any
type Config = Any
type Outputs = Mapping[str, Any]

# Backends that are a library of the machine, which JAX itself would call.
LIBRARIES = ("cudnn",)
# JAX's platforms that a backend has kernels for; one that is not named here runs on any.
PLATFORMS = {
    "triton": ("cuda", "rocm"),
    "mosaic_gpu": ("cuda",),
    "cudnn": ("cuda",),
    "pallas_tpu": ("tpu",),
}


# Triton's modules import one another in circles: two threads that import it first at one time see half of it.
_importing = threading.RLock()


@functools.cache
def load(path: str) -> Callable[..., Any]:
    """Import ``"package.module:name"``. Threads that import at one time wait for one another."""
    module, _, name = path.partition(":")
    with _importing:
        return getattr(importlib.import_module(module), name)


@dataclass(frozen=True, kw_only=True)
class Op:
    """What is computed, with its contract.

    Attributes:
      name: ``"flash_attention"``.
      version: the contract's version; raised when old results stop being comparable.
      directions: ``("fwd", "bwd")``, or ``("fwd",)`` for an op without gradients of its own.
      fields: the signature's fields, in the order of its text.
      to_signature, from_signature: between the op's problem type and its signature. What a signature leaves out
        (softmax scale, the cap's value) is filled with a fixed canonical value by ``from_signature``.
      flops: ``(problem, direction) -> int``, floating-point operations of the plain algorithm.
      bytes_moved: ``(problem, direction) -> int``, the fewest bytes to and from device memory.
      inputs: path of ``(problem, direction, seed) -> inputs``; a pytree of arrays for one call. For ``bwd`` it holds
        the residuals and the cotangents too. Called under ``jit``, with a traced int32 seed.
      reference: path of ``(problem, direction, inputs) -> {output: array}`` in high precision, sharing no code with
        any kernel. Called under ``jit``, as the baseline is.
      baseline: path of the same in the working dtype, done plainly: what the dtype itself can do.
      battery: path of ``(problem) -> tuple[problem, ...]``, small hard variants of a problem (odd lengths, other
        seeds' shapes, fully masked rows) on which a winner must also be right.
      coarser: path of ``(problem) -> iterable of problems``, variants of a small problem from the least changed to the
        most, for kernels that cannot take its odd sizes. A kernel is proven on the first one that it takes.
      walk: path of a ``kernels.cost_walk.CostWalk``, for predicted times; without one there are none.
      recognise: path of ``(graph) -> findings`` (``kernels.graph``), which finds the op's problems in a program.
      untuned: path of ``(kernel, problem, direction, device) -> place``, the order of untuned kernels, highest first;
        None for a kernel that it does not know, whose own ``priority`` counts.
      functions: paths of the op's public functions, ``"module:name"``; each is ``attn_tune.<name>``.
    """

    name: str
    version: int
    directions: tuple[str, ...]
    fields: tuple[Field, ...]
    to_signature: Callable[[Problem], Signature]
    from_signature: Callable[[Signature], Problem]
    flops: Callable[[Problem, str], int]
    bytes_moved: Callable[[Problem, str], int]
    inputs: str
    reference: str
    baseline: str
    battery: str = ""
    coarser: str = ""
    recognise: str = ""
    walk: str = ""
    summary: str = ""
    untuned: str = ""
    functions: tuple[str, ...] = ()

    def place(self, spec: "KernelSpec", problem: Problem, direction: str, device: Device) -> int:
        """The place of a kernel among those that can do an untuned problem, highest first."""
        found = load(self.untuned)(spec.name, problem, direction, device) if self.untuned else None
        return spec.priority_for(problem, direction, device) if found is None else found

    def problem_signature(self, text: str) -> Signature:
        """The signature that a problem said by ``text`` is looked up by: what changes nothing is left out.

        Raises:
          UsageError: as ``parse_signature``; or no such problem can be.
        """
        return self.to_signature(self.from_signature(self.parse_signature(text)))

    def parse_signature(self, text: str) -> Signature:
        """Reads a signature of this op, as it is.

        Raises:
          UsageError: the text is malformed or of another op or contract version.
        """
        signature = Signature.parse(text, self.fields)
        if (signature.op, signature.version) != (self.name, self.version):
            raise UsageError(f"signature {text!r} is not of {self.name}/v{self.version}")
        return signature


@dataclass(frozen=True, kw_only=True)
class Search:
    """The search of one direction of one kernel.

    Attributes:
      config: the config dataclass of the whole direction.
      heuristic: ``(problem, device) -> config``, the untuned choice. It must be feasible.
      candidates: per part, ``(problem, device) -> iterable of distinct configs of that part``. A direction made of one
        launch has the single part ``""`` whose configs are whole configs. A direction made of several has one entry
        per launch, named like the field of ``config`` that holds it.
      infeasible: ``(problem, device, config) -> reason or None``; what can be known before compiling: divisibility,
        shared memory, registers. Takes a whole config or a part's config.
      call: path of ``(problem, config, inputs) -> {output: array}`` for the whole direction, on traced or concrete
        arrays. Outputs a caller drops must cost nothing under jit, so that one part can be timed by itself.
      outputs: per part, the names of the outputs it alone makes; ``""`` names all.
      adapt: ``(tuned, problem, device, config) -> config or None``: makes of the config of the problem ``tuned`` one
        for ``problem``, whose sizes are near (``runtime.shapes``). Knobs whose best value depends on sizes follow them,
        others stay. None if there is no such config. By default no knob changes. ``infeasible`` is asked of the result.
      grows: the knobs of which more never needs less memory or fewer registers. Once a config has run out of a
        resource, those that are no smaller in any of these and equal in all others are not compiled any more.
      nondeterministic: why two runs of one config on equal inputs may differ in their last bits; empty if they never
        do. A job that requires determinism never gets it (``runtime.determinism``); see ``KernelSpec.needs_leave`` too.
    """

    config: type
    heuristic: Callable[[Problem, Device], Config]
    candidates: Mapping[str, Callable[[Problem, Device], Iterable[Config]]]
    call: str
    outputs: Mapping[str, tuple[str, ...]]
    infeasible: Callable[[Problem, Device, Config], str | None] = lambda problem, device, config: (
        None
    )
    adapt: Callable[[Problem, Problem, Device, Config], Config | None] = (
        lambda tuned, problem, device, config: config
    )
    grows: tuple[str, ...] = ()
    nondeterministic: str = ""

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts searched one by one, ``("",)`` for a direction of one launch."""
        return tuple(self.candidates)

    def whole(self, base: Config, part: str, config: Config) -> Config:
        """``base`` with one part replaced."""
        if part == WHOLE:
            return config
        import dataclasses

        return dataclasses.replace(base, **{part: config})


type Priority = int | Callable[[Problem, str, Device], int]


@dataclass(frozen=True, kw_only=True)
class KernelSpec:
    """One implementation of an op.

    Attributes:
      op: the op's name.
      name: unique within the op; the folder's name.
      backend: ``triton``, ``pallas_tpu``, ``mosaic_gpu``, ``xla`` or ``cudnn``.
      searches: per direction; a direction that is absent is not implemented.
      unsupported: ``(problem, direction, device) -> reason or None``: a sentence that says why this kernel cannot do
        this problem on this device at all.
      modules: names of modules whose source decides the generated code and that no call reaches by imports; hashed into
        the environment with all that the calls do reach (``kernels.source``).
      priority: per platform, the order in which untuned kernels are preferred, highest first; 0 where absent. A number,
        or ``(problem, direction, device) -> number`` where it depends on these.
      requires: importable modules without which the kernel cannot run, e.g. ``("triton",)``.
      extra: the extra of attn-tune that installs them, for the sentence that says that one is missing.
      libraries: installed distributions whose version decides the generated code too, e.g. ``("tokamax",)``; hashed
        with the source, so that timings of another version are stale.
      summary: one line for listings.
    """

    op: str
    name: str
    backend: str
    searches: Mapping[str, Search]
    unsupported: Callable[[Problem, str, Device], str | None]
    modules: tuple[str, ...] = ()
    priority: Mapping[str, Priority] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    extra: str = ""
    libraries: tuple[str, ...] = ()
    summary: str = ""
    entry_point: str = field(default="", compare=False)

    @property
    def id(self) -> str:
        """``"op/name"``."""
        return f"{self.op}/{self.name}"

    def priority_for(self, problem: Problem, direction: str, device: Device) -> int:
        """This kernel's place among those that can do an untuned problem."""
        priority = self.priority.get(device.platform, 0)
        return priority(problem, direction, device) if callable(priority) else priority

    @property
    def source_hash(self) -> str:
        """The digest of the source that the calls reach, and of the libraries' versions."""
        from attn_tune.kernels.source import source_hash

        calls = {search.call.partition(":")[0] for search in self.searches.values()}
        return source_hash((*sorted(calls), *self.modules), self.libraries)

    def needs_leave(self, direction: str) -> bool:
        """Whether this direction is only swept, shipped and chosen where non-deterministic kernels are allowed.

        A library's is not: it is what JAX itself would run.
        """
        search = self.searches.get(direction)
        return bool(search and search.nondeterministic) and self.backend not in LIBRARIES

    def environment(self, base: Environment) -> Environment:
        """``base`` with this kernel's source hash."""
        import dataclasses

        return dataclasses.replace(base, source_hash=self.source_hash)
