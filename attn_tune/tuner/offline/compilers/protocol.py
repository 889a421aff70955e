"""Messages between a sweep and the processes that compile for a target."""

from dataclasses import dataclass, field

from attn_tune.schema.trial import Resources, Shortage, Status
from attn_tune.tuner.offline.predict.schedule import KernelSchedule
from attn_tune.tuner.protocol import ConfigRef


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileFor:
    """A request to compile one config.

    Attributes:
      ref: the config.
      target: the target's name.
      whole: whether to compile the program around its launches too.
      dump_folder: libtpu writes its schedules there; only for TPUs.
      cache_folder: the ``LaunchCache`` that all processes of one pool share; only for TPUs.
    """

    ref: ConfigRef
    target: str
    whole: bool = False
    dump_folder: str = ""
    cache_folder: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """The result of a request.

    Attributes:
      status: ``compiled``, or how it failed.
      reason: a sentence about the failure.
      resources: memory and registers, where the compiler tells them.
      shortage: the resource that ran out.
      compile_ms: the time that it took.
      schedules: the compiler's, one a launch, where it tells them.
      pruned: whether it was not compiled because a smaller config did not fit.
    """

    status: Status
    reason: str = ""
    resources: Resources = field(default_factory=Resources)
    shortage: Shortage | None = None
    compile_ms: float | None = None
    schedules: tuple[KernelSchedule, ...] = ()
    pruned: bool = False
