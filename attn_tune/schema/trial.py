"""A trial: one attempt at one config, and what became of it."""

import enum
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attn_tune.schema.conditions import Conditions
from attn_tune.schema.config import config_digest
from attn_tune.schema.device import Device
from attn_tune.schema.direction import WHOLE, is_direction
from attn_tune.schema.environment import Environment
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Signature

# Readers of the database count nanoseconds since 1970 in 64 bits, which end in the year 2262.
_LAST_NS = 2**63 - 1


# On the problem itself, or on a feature problem that the reason names first.
_NOT_IMPORTED = re.compile(r"(?:^|: )compile: (?:ImportError|ModuleNotFoundError): ")


class Status(enum.StrEnum):
    """The outcome of a trial. Every other module classifies outcomes by the properties below."""

    OK = "ok"
    """Ran, was right, and was timed."""
    UNPROVEN = "unproven"
    """Ran right on its case and was timed, but could run no feature problem. No evidence unless asked for."""
    INCORRECT = "incorrect"
    """Ran, and an output differs from the reference by more than is allowed."""
    UNSUPPORTED = "unsupported"
    """Refused before it ran: the kernel does not support the problem or the device, or the config cannot be built."""
    OUT_OF_RESOURCES = "out_of_resources"
    """Needs more of some memory than the device, the host or the compiler grants."""
    COMPILE_ERROR = "compile_error"
    """The compiler failed for another reason than a lack of resources."""
    RUNTIME_ERROR = "runtime_error"
    """Raised an error while it was declared, proven or timed."""
    CRASHED = "crashed"
    """Ended the process that ran it."""
    TIMED_OUT = "timed_out"
    """Took longer than the limit of one of its phases, and was stopped."""
    COMPILED = "compiled"
    """Compiled for a device that is not present; it fits, and nothing was run."""
    PREDICTED = "predicted"
    """Compiled for a device that is not present, with a predicted time; nothing was run."""

    @property
    def is_measured(self) -> bool:
        """Whether it ran right and was timed: the trial has a measurement."""
        return self in (Status.OK, Status.UNPROVEN)

    @property
    def is_offline(self) -> bool:
        """Whether it was compiled without an error, and not run on purpose."""
        return self in (Status.COMPILED, Status.PREDICTED)

    @property
    def is_refused(self) -> bool:
        """Whether it was turned down beforehand, which is no failure of the config."""
        return self is Status.UNSUPPORTED

    @property
    def is_fine(self) -> bool:
        """Whether nothing went wrong; any other status needs a reason."""
        return self.is_measured or self.is_offline

    @property
    def is_failure(self) -> bool:
        """Whether the config was tried and failed."""
        return not self.is_fine and not self.is_refused

    @property
    def was_tried(self) -> bool:
        """Whether the config was tried on a device: it was measured, or it failed."""
        return self.is_measured or self.is_failure

    @property
    def bars(self) -> bool:
        """Whether the config may never be chosen, despite its other trials."""
        return self in (Status.INCORRECT, Status.CRASHED)

    @property
    def does_not_fit(self) -> bool:
        """Whether the problem is too large or of the wrong kind for the config, which may be right elsewhere."""
        return self in (Status.OUT_OF_RESOURCES, Status.UNSUPPORTED)

    @property
    def needs_no_device(self) -> bool:
        """Whether compiling alone, for a device that is not present, can end this way."""
        ended = (
            Status.OUT_OF_RESOURCES,
            Status.COMPILE_ERROR,
            Status.TIMED_OUT,
            Status.CRASHED,
        )
        return self.is_offline or self in ended


def lacks_a_library(status: Status, reason: str) -> bool:
    """Whether a library of the kernel could not be imported: no other config will do better, but another day may."""
    return status is Status.COMPILE_ERROR and _NOT_IMPORTED.search(reason) is not None


class Stage(enum.StrEnum):
    """The step of a sweep that a trial belongs to."""

    SEARCH = "search"
    """One config at a time, looking for the fastest."""
    FINAL = "final"
    """The last round: samples of several configs are interleaved, so they may be paired."""


def count_words(counts: Mapping[Status, int]) -> str:
    """The trials of a sweep in the words of every place that counts them: ``14 tried (14 ok), 21 refused``.

    Trials that were compiled alone, for an absent device, are named by their status.
    """
    found = {status: number for status, number in counts.items() if number}
    order = sorted(found, key=lambda status: (not status.is_fine, -found[status], status))
    tried = [f"{found[s]} {s}" for s in order if s.was_tried]
    parts = [f"{sum(found[s] for s in order if s.was_tried)} tried ({', '.join(tried)})"] if tried else []
    parts += [f"{found[s]} {s}" for s in order if s.is_offline]
    parts += [f"{found[s]} refused" for s in order if s.is_refused]
    return ", ".join(parts) or "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Protocol:
    """The way a measurement was taken.

    Attributes:
      timer: ``"cupti"``, ``"xplane"`` or ``"host"``.
      warmup: runs before the first sample.
      flush_l2: whether other data was read into the last-level cache before each sample.
      calls_per_sample: launches that are averaged into one sample.
      interleaved: whether other configs were measured in turns with this one.
    """

    timer: str
    warmup: int
    flush_l2: bool
    calls_per_sample: int = 1
    interleaved: bool = False


def _is_time(value: object) -> bool:
    return isinstance(value, int) and 0 < value <= _LAST_NS


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """Raw samples in integer nanoseconds, with the protocol that made them. Everything else is derived.

    Two measurements with the same non-empty ``round_id`` were interleaved: sample ``i`` of one and sample ``i`` of the
    other were taken in the same round, so they may be paired. A config that took part twice has its second measurement
    under ``twin_round(round_id)``.

    Attributes:
      samples_ns: the time of one call, once a sample, in the order taken.
      protocol: how the samples were taken.

    Raises:
      UsageError: there is no sample, or one is no positive integer of 64 bits.
    """

    samples_ns: tuple[int, ...]
    protocol: Protocol
    round_id: str = ""

    def __post_init__(self):
        if not self.samples_ns or not all(_is_time(s) for s in self.samples_ns):
            raise UsageError(f"a measurement needs positive samples, whole nanoseconds, got {self.samples_ns!r}")

    @property
    def median_ns(self) -> float:
        """Median of the samples, nanoseconds."""
        import statistics  # Slow to import, and the command line's help passes through here.

        return statistics.median(self.samples_ns)

    @property
    def min_ns(self) -> int:
        """Fastest sample, nanoseconds."""
        return min(self.samples_ns)


_TWIN = "/twin"


def twin_round(round_id: str) -> str:
    """The name of a round for the second measurement of a config that took part twice."""
    return round_id + _TWIN


def main_round(round_id: str) -> str:
    """The name of a round, without what marks a second measurement."""
    return round_id.removesuffix(_TWIN)


def is_twin(round_id: str) -> bool:
    """Whether a measurement with this ``round_id`` is such a second one."""
    return round_id.endswith(_TWIN)


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputError:
    """The error of one output against the high-precision reference.

    ``error`` and ``allowed`` are in the same norm; ``ratio = error / allowed`` and the output passes at ratio <= 1.
    ``mismatch`` says what an output without a comparable array is instead, for a message; it is not stored.
    """

    output: str
    error: float
    allowed: float
    mismatch: str = field(default="", compare=False)

    @property
    def ratio(self) -> float:
        """Error over what is allowed; above 1 is wrong. NaN and infinity count as infinite."""
        if not math.isfinite(self.error) or not self.allowed > 0:
            return math.inf
        return self.error / self.allowed


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """Needs of one program, as the compiler reports them. None is unknown.

    Attributes:
      shared_bytes: on-chip memory of one program.
      registers: registers of one thread.
      spill_bytes: bytes of registers spilled to memory.
      code_digest: the digest of the compiled code, ``""`` where it is unknown.
    """

    shared_bytes: int | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    code_digest: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shortage:
    """A lack of one resource, in the resource's own unit.

    Attributes:
      resource: the name of the resource.
      needed: the amount that the config needs.
      limit: the amount that there is.
    """

    resource: str
    needed: int
    limit: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """A predicted time in integer nanoseconds; nothing was measured.

    The time lies between ``low_ns`` and ``high_ns`` four times out of five, as far as ``model`` knows. ``model`` names
    it with its version; ``terms`` are what it added up, in nanoseconds or as counts.

    Attributes:
      ns: the time that is thought most likely.

    Raises:
      UsageError: the times are no positive integers of 64 bits, or not in order.
    """

    ns: int
    low_ns: int
    high_ns: int
    model: str
    terms: Mapping[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self):
        times = (self.low_ns, self.ns, self.high_ns)
        if not all(map(_is_time, times)) or sorted(times) != list(times):
            raise UsageError(f"a prediction lies in its interval, in whole nanoseconds, got {self!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One attempt at (kernel, direction, part, signature, device, environment, config).

    Attributes:
      kernel: ``"op/name"``.
      direction: one of the op's directions.
      signature: the problem.
      device: the device that ran it, or for which it was compiled.
      environment: the software.
      config: the knobs, as plain data.
      status: the outcome.
      part: ``""`` for a whole direction, else the launch that alone was searched.
      stage: the step of the sweep.
      reason: a sentence about what went wrong; ``""`` where nothing did.
      errors: the error of each output that was compared with the reference.
      measurement: the samples, of a trial that was measured.
      resources: the needs of the compiled program.
      conditions: the state of the device during the measurement, of finals.
      shortage: the numbers of ``out_of_resources``, where they are known.
      repeatable: False where two runs on equal inputs gave different bits, None where that was not checked.
      features: the number of feature problems that the config ran and passed, None where that is unknown.
      prediction: the predicted time of a trial that was only compiled.
      compile_ms: milliseconds of lowering and compiling, None where that is unknown.
      prove_ms: milliseconds of comparing outputs with the reference, None where that is unknown.
      run_ms: milliseconds of timing, None where that is unknown; finals share the time of their round.
      is_heuristic: whether it is the config that the kernel would choose without tuning.
      started_us: Unix time in microseconds at which it began.
      ended_us: Unix time in microseconds at which it ended, None where that is unknown.
      point: the names of the grid points that asked for it, joined by ``+``; ``""`` where none has a name.

    Raises:
      UsageError: fields contradict one another, a duration is negative or not finite, a time is before 1970 or after
        2262.
    """

    kernel: str
    direction: str
    signature: Signature
    device: Device
    environment: Environment
    config: Mapping[str, Any]
    status: Status
    part: str = WHOLE
    stage: Stage = Stage.SEARCH
    reason: str = ""
    errors: tuple[OutputError, ...] = ()
    measurement: Measurement | None = None
    resources: Resources = field(default_factory=Resources)
    conditions: Conditions | None = None
    shortage: Shortage | None = None
    repeatable: bool | None = None
    features: int | None = None
    prediction: Prediction | None = None
    compile_ms: float | None = None
    prove_ms: float | None = None
    run_ms: float | None = None
    is_heuristic: bool = False
    started_us: int = 0
    ended_us: int | None = None
    point: str = ""

    def __post_init__(self):
        if not is_direction(self.direction):
            raise UsageError(f"direction must be a word such as 'fwd', got {self.direction!r}")
        if self.status.is_measured != (self.measurement is not None):
            raise UsageError(f"a trial has a measurement if and only if it is ok or unproven; status={self.status}")
        if (self.status is Status.PREDICTED) != (self.prediction is not None):
            raise UsageError(f"a trial has a prediction if and only if it is predicted; status={self.status}")
        if self.shortage is not None and self.status is not Status.OUT_OF_RESOURCES:
            raise UsageError(f"only out_of_resources has a shortage; status={self.status}")
        if self.features is not None and self.features < 0:
            raise UsageError(f"features is a count, got {self.features}")
        if not self.status.is_fine and not self.reason:
            raise UsageError(f"a trial with status={self.status} needs a reason")
        for name in ("compile_ms", "prove_ms", "run_ms"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise UsageError(f"{name} of a trial is a finite number of at least 0, got {value!r}")
        for name in ("started_us", "ended_us"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= _LAST_NS // 1000:
                raise UsageError(f"{name} of a trial is Unix time between 1970 and 2262 in microseconds, got {value!r}")

    @property
    def config_digest(self) -> str:
        """The digest of ``config``."""
        return config_digest(self.config)

    @property
    def worst_error(self) -> OutputError | None:
        """The output closest to (or furthest past) its limit."""
        return max(self.errors, key=lambda e: e.ratio, default=None)
