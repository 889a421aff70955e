"""Messages between the sweep and the worker process. Plain data: it is pickled, or sent to another host."""

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from attn_tune.ops.registry import get_op
from attn_tune.schema.conditions import CLOCK_TOLERANCE, Conditions
from attn_tune.schema.config import config_digest
from attn_tune.schema.device import Device
from attn_tune.schema.environment import Environment
from attn_tune.schema.signature import Signature
from attn_tune.schema.trial import WHOLE, Measurement, OutputError, Resources, Status

# Seeds of a swept problem's inputs, and of its feature problems, which no search has seen. Validation takes both.
SWEPT_SEEDS = (0, 1)
FEATURE_SEEDS = (1009,)


class Phase(enum.StrEnum):
    """A phase of a worker; each has a deadline of its own."""

    START = "start"
    """Loading JAX, and finding the device."""
    PREPARE = "prepare"
    """Making the inputs and the reference of a case."""
    COMPILE = "compile"
    """Compiling one config."""
    VALIDATE = "validate"
    """Comparing the outputs of one config with the reference."""
    MEASURE = "measure"
    """Timing one config."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Seconds that one phase may take before the worker is killed, and the host memory of the worker.

    ``memory_gib`` is None where a share of the available memory is the limit.

    Attributes:
      start, prepare, compile, validate, measure: the seconds of each ``Phase``.
    """

    start: float = 180.0
    prepare: float = 600.0
    compile: float = 120.0
    validate: float = 180.0
    measure: float = 60.0
    memory_gib: float | None = None

    def of(self, phase: Phase) -> float:
        """The deadline of ``phase``."""
        return getattr(self, phase.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasurePolicy:
    """Numbers of samples, and when to stop.

    ``early_stops`` are ``(samples, ratio)``: a config of which so many samples are all above ``ratio`` times the best
    so far has lost and is sampled no more. Times spread by a few per cent: the ratio may shrink with more samples.
    Sampling ends at ``samples``, or after ``max_s`` once ``min_samples`` are there. ``rounds`` and ``rounds_max_s``
    are those of the finals. When the device's clock moves by more than ``clock_tolerance`` (a share) during a
    measurement, it is taken again, at most ``most_repeats`` times.

    Attributes:
      warmup: calls before the first sample.
      flush_l2: whether the last-level cache is emptied before each sample.
      timer: the name of the timer; empty chooses one.
    """

    warmup: int = 2
    samples: int = 12
    min_samples: int = 3
    max_s: float = 1.0
    early_stops: tuple[tuple[int, float], ...] = ((3, 1.25), (6, 1.1))
    rounds: int = 24
    rounds_max_s: float = 10.0
    clock_tolerance: float = CLOCK_TOLERANCE
    most_repeats: int = 2
    flush_l2: bool = True
    timer: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigRef:
    """One whole config of one direction of one kernel. A ``part`` other than ``""`` runs that launch alone.

    ``problem`` is what it runs on instead of the signature's problem: a feature problem, or one whose scale and
    the like are its own.
    """

    kernel: str
    signature: Signature
    direction: str
    config: Mapping[str, Any]
    part: str = WHOLE
    problem: Any = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal refs, and hashable."""
        digest = config_digest(self.config)
        return self.kernel, self.signature.text, self.direction, self.part, digest, self.problem

    @property
    def part_config(self) -> Mapping[str, Any]:
        """The config of the part alone."""
        return self.config if self.part == WHOLE else self.config[self.part]

    @property
    def runs_on(self) -> Any:
        """The problem that it runs on."""
        if self.problem is not None:
            return self.problem
        return get_op(self.signature.op).from_signature(self.signature)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lowered:
    """A config that was lowered in another process: what is left to do is XLA's part.

    Attributes:
      program: a serialised ``jax.export.Exported`` of the inputs' leaves; it holds the kernels' machine code.
      resources: as far as the compiler of the kernel knows them.
      lower_ms: milliseconds that it took.
      in_place: the places of the leaves that the program consumes.
      backend: that of the kernel.
    """

    program: bytes
    resources: Resources
    lower_ms: float
    in_place: tuple[int, ...] = ()
    backend: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Identify:
    """Asks for the device that the worker holds, and its software."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Compile, validate and measure one config.

    ``best_ns`` is the time to beat, for giving up early. Without ``measure`` the config is only proven right.
    ``lowered`` saves the worker the lowering. ``tried`` names, by digest of the program, the configs that were tried:
    one that lowers to the same program is not run.

    Attributes:
      ref: the config.
      device: the device that the worker must have.
      seeds: the seeds of the inputs that it is proven on.
      policy: how it is timed.
    """

    ref: ConfigRef
    device: Device
    measure: bool = True
    seeds: tuple[int, ...] = SWEPT_SEEDS
    policy: MeasurePolicy = field(default_factory=MeasurePolicy)
    best_ns: float | None = None
    lowered: Lowered | None = None
    tried: Mapping[str, str] = field(default_factory=dict)

    def same_program_outcome(self, resources: Resources) -> "Outcome | None":
        """The outcome of a config that lowers to a program that was tried; None for a program that is new."""
        tried = self.tried.get(resources.code_digest)
        if tried is None or not resources.code_digest:
            return None
        reason = f"not run: it lowers to the same program as {tried}, which was tried"
        return Outcome(status=Status.UNSUPPORTED, reason=reason, resources=resources)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finals:
    """Prove right once more and measure, interleaved, configs of one case, in a process that has run nothing else.

    The config of place ``twin`` takes part twice, which shows how far apart equal configs seem.

    Attributes:
      refs: the configs.
      device: the device that the worker must have.
      seed: the seed of the inputs.
      round_id: the name of the round, which its measurements share.
      policy: how they are timed.
    """

    refs: tuple[ConfigRef, ...]
    device: Device
    twin: int = 0
    seed: int = 0
    round_id: str = ""
    policy: MeasurePolicy = field(default_factory=MeasurePolicy)


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Tells of a config that will be run soon, for the worker to compile meanwhile. Nothing is answered.

    Attributes:
      ref: the config.
      lowered: its program.
    """

    ref: ConfigRef
    lowered: Lowered


type Request = Identify | Run | Finals


@dataclass(frozen=True, kw_only=True, slots=True)
class Entering:
    """The worker enters a phase: a new deadline."""

    phase: Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Answer to ``Identify``.

    Attributes:
      device: the worker's default device.
      environment: the software of its process.
      device_count: the number of devices that it sees.
    """

    device: Device
    environment: Environment
    device_count: int = 1

    def differences(self, other: "Identity") -> list[tuple[str, str, Any, Any]]:
        """``("devices" or "software", field, own value, the other's)`` of each field that differs."""
        return [
            (kind, name, own[name], theirs[name])
            for kind, own, theirs in (
                ("devices", self.device.identity, other.device.identity),
                ("software", asdict(self.environment), asdict(other.environment)),
            )
            for name in own
            if own[name] != theirs[name]
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Answer to ``Run``, and one entry of the answer to ``Finals``.

    ``sticky`` says that the process can no longer be trusted (a CUDA error that stays). ``phases_ms`` is the wall time
    of each phase. ``repeatable`` and ``features`` as in ``Trial``.

    Attributes:
      status: the outcome as ``Trial`` has it.
      reason: a sentence for anything but ok.
      errors: the error of each output that was compared.
      measurement: the samples; None where nothing was timed.
      resources: the memory and registers that it takes, as far as is known.
      compile_ms: the wall time of the compiler.
      conditions: the state of the device meanwhile.
    """

    status: Status
    reason: str = ""
    errors: tuple[OutputError, ...] = ()
    measurement: Measurement | None = None
    resources: Resources = field(default_factory=Resources)
    compile_ms: float | None = None
    conditions: Conditions | None = None
    repeatable: bool | None = None
    features: int | None = None
    sticky: bool = False
    phases_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalsOutcome:
    """Answer to ``Finals``, in the order asked; ``twin`` is the second measurement of the config that had two.

    Attributes:
      outcomes: one a config.
    """

    outcomes: tuple[Outcome, ...]
    twin: Measurement | None = None


class Ready:
    """The worker has loaded jax and found its device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """The request itself cannot be served with any config: the inputs cannot be made, say, or a disk is full.

    Attributes:
      reason: a sentence.
      disk_full: whether the cause is a full disk.
    """

    reason: str
    disk_full: bool = False


type Reply = Identity | Outcome | FinalsOutcome | Refusal
