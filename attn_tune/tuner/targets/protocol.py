"""What a sweep and the processes that compile for a target say to one another."""

from dataclasses import dataclass, field

from attn_tune.schema.trial import Resources, Shortage, Status
from attn_tune.tuner.predict.schedule import KernelSchedule
from attn_tune.tuner.protocol import ConfigRef


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileFor:
    """Compile one config for the target called ``target``. ``whole`` asks for the program around its launches too."""

    ref: ConfigRef
    target: str
    whole: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """What became of it.

    ``schedules`` are the compiler's, one a launch, where it tells them. ``pruned`` says that it was not compiled: a
    smaller config had told.
    """

    status: Status
    reason: str = ""
    resources: Resources = field(default_factory=Resources)
    shortage: Shortage | None = None
    compile_ms: float | None = None
    schedules: tuple[KernelSchedule, ...] = ()
    pruned: bool = False
