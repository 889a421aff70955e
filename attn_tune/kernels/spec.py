"""`KernelSpec` and `Search`: the declarations of a kernel. Importing a spec loads neither jax nor triton.

A *kernel* says how an op is computed: its configs, its limits and where its code is. The op's own contract is
``attn_tune.ops.contract``. Everything that runs on arrays is named by a ``"module:function"`` path and imported on
first use.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attn_tune.schema.device import Device
from attn_tune.schema.direction import WHOLE
from attn_tune.schema.environment import Environment
from attn_tune.schema.errors import warn

# A problem of the kernel's own op (``attn_tune.ops.contract.Problem``), whose attributes its functions read.
type Problem = Any
type Config = Any


@functools.cache
def _warn_unreadable(kernel: str, reason: str) -> None:
    warn(f"the source of kernel {kernel} cannot be read ({reason}), so none of its rows is fresh here")


# Backends that are a library of the machine, which JAX itself would call.
LIBRARIES = ("cudnn",)
# JAX's platforms that a backend has kernels for; one that is not named here runs on any.
PLATFORMS: Mapping[str, tuple[str, ...]] = {
    "triton": ("cuda", "rocm"),
    "mosaic_gpu": ("cuda",),
    "cudnn": ("cuda",),
    "cute": ("cuda",),
    "pallas_tpu": ("tpu",),
}
# Backends whose compilers make machine code for a GPU that need not be here.
COMPILE_ANYWHERE = ("triton", "cute")


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
      outputs: of a direction made of several launches, per part the names of the outputs it alone makes. One launch
        makes all, and the whole direction is proven on all.
      adapt: ``(tuned, problem, device, config) -> config or None``: makes of the config of the problem ``tuned`` one
        for ``problem``, whose sizes are near (``runtime.lookup.signature_distance``). Knobs whose best value depends on
        sizes follow them, others stay. None if there is no such config. By default no knob changes. ``infeasible`` is
        asked of the result.
      grows: the knobs of which more never needs less memory or fewer registers. Once a config has run out of a
        resource, those that are no smaller in any of these and equal in all others are not compiled any more.
      nondeterministic: why two runs of one config on equal inputs may differ in their last bits; empty if they never
        do. A job that requires determinism never gets it (``runtime.determinism``); see ``KernelSpec.needs_leave`` too.
    """

    config: type[Any]
    heuristic: Callable[[Problem, Device], Config]
    candidates: Mapping[str, Callable[[Problem, Device], Iterable[Config]]]
    call: str
    outputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    infeasible: Callable[[Problem, Device, Config], str | None] = lambda problem, device, config: None
    adapt: Callable[[Problem, Problem, Device, Config], Config | None] = lambda tuned, problem, device, config: config
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
      backend: ``triton``, ``pallas_tpu``, ``mosaic_gpu``, ``cute``, ``xla`` or ``cudnn``.
      searches: per direction; a direction that is absent is not implemented.
      unsupported: ``(problem, direction, device) -> reason or None``: a sentence that says why this kernel cannot do
        this problem on this device at all.
      priority: per platform, the order in which untuned kernels are preferred, highest first; 0 where absent. A number,
        or ``(problem, direction, device) -> number`` where it depends on these.
      requires: importable modules without which the kernel cannot run, e.g. ``("triton",)``.
      extra: the extra of attn-tune that installs them, for the sentence that says that one is missing.
      libraries: installed distributions whose version decides the generated code too, e.g. ``("tokamax",)``; hashed
        with the source, so that timings of another version are stale.
      summary: one line for listings.
      entry_point: ``module:attribute`` of the entry point it was found by; empty for a kernel of this package.
    """

    op: str
    name: str
    backend: str
    searches: Mapping[str, Search]
    unsupported: Callable[[Problem, str, Device], str | None]
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

        calls = {search.call.partition(":")[0] for search in self.searches.values() if search.call}
        return source_hash(tuple(sorted(calls)), self.libraries)

    @property
    def is_launched_on_gpu(self) -> bool:
        """Whether its calls are launches on a GPU that XLA neither fuses nor plans, as it does those of cuDNN."""
        return "cuda" in PLATFORMS.get(self.backend, ()) and self.backend not in LIBRARIES

    def needs_leave(self, direction: str, repeatable: bool | None = None) -> bool:
        """Whether this direction is only swept, shipped and chosen where non-deterministic kernels are allowed.

        So is a config whose bits were seen to differ from run to run (``repeatable`` False). A library's is not: it is
        what JAX itself would run.
        """
        search = self.searches.get(direction)
        differs = repeatable is False or bool(search and search.nondeterministic)
        return differs and self.backend not in LIBRARIES

    def environment(self, base: Environment) -> Environment:
        """``base`` with this kernel's source hash; without one, and with a warning, where its source cannot be read.

        Such a kernel (in a zip file, or without its ``.py`` files) equals no measured one.
        """
        import dataclasses

        try:
            found = self.source_hash
        except (OSError, ImportError, SyntaxError, ValueError) as error:
            _warn_unreadable(self.id, f"{type(error).__name__}: {error}")
            found = ""
        return dataclasses.replace(base, source_hash=found)
