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
from attn_tune.schema.environment import Environment
from attn_tune.schema.signature import Signature

WHOLE = ""
_DIRECTION = re.compile(r"[a-z][a-z0-9_]*")


def is_direction(name: object) -> bool:
    """Whether ``name`` may name a direction of an op."""
    return isinstance(name, str) and _DIRECTION.fullmatch(name) is not None


class Status(enum.StrEnum):
    """The outcome of a trial.

    ``unproven`` ran right on its case and was timed, but no feature problem could run. It is no evidence for a
    decision unless that is asked for.
    """

    OK = "ok"
    UNPROVEN = "unproven"
    INCORRECT = "incorrect"
    UNSUPPORTED = "unsupported"
    OUT_OF_RESOURCES = "out_of_resources"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    COMPILED = "compiled"
    PREDICTED = "predicted"

    @property
    def is_measured(self) -> bool:
        """Whether a trial with this status has a measurement."""
        return self in _MEASURED

    @property
    def is_fine(self) -> bool:
        """Whether nothing went wrong; any other status needs a reason."""
        return self in _MEASURED or self in _NOT_RUN

    @property
    def is_failure(self) -> bool:
        """Whether the config was tried and failed; a config that was refused did not fail."""
        return not self.is_fine and self is not Status.UNSUPPORTED

    @property
    def bars(self) -> bool:
        """Whether the config may never be chosen, whatever its other trials say."""
        return self in _BARRING


_MEASURED = frozenset((Status.OK, Status.UNPROVEN))
_NOT_RUN = frozenset((Status.COMPILED, Status.PREDICTED))
_BARRING = frozenset((Status.INCORRECT, Status.CRASHED))


class Stage(enum.StrEnum):
    """Which step of a sweep a trial belongs to. ``final`` samples are interleaved and may be paired."""

    SEARCH = "search"
    FINAL = "final"


@dataclass(frozen=True, kw_only=True, slots=True)
class Protocol:
    """How a measurement was taken.

    ``timer`` is ``"cupti"``, ``"xplane"`` or ``"host"``; ``flush_l2`` says that the last-level cache was
    overwritten before each sample; ``calls_per_sample`` launches are averaged into one sample.
    """

    timer: str
    warmup: int
    flush_l2: bool
    calls_per_sample: int = 1
    interleaved: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """Raw samples in integer nanoseconds, with the protocol that made them. Everything else is derived.

    Two measurements with the same non-empty ``round_id`` were interleaved: sample ``i`` of one and sample ``i`` of the
    other were taken in the same round, so they may be paired. A config that took part twice has its second measurement
    under ``twin_round(round_id)``.
    """

    samples_ns: tuple[int, ...]
    protocol: Protocol
    round_id: str = ""

    def __post_init__(self):
        if not self.samples_ns or any(s <= 0 for s in self.samples_ns):
            raise ValueError(f"a measurement needs positive samples, got {self.samples_ns!r}")

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
    """

    output: str
    error: float
    allowed: float

    @property
    def ratio(self) -> float:
        """Error over what is allowed; above 1 is wrong. NaN and infinity count as infinite."""
        if not math.isfinite(self.error) or not self.allowed > 0:
            return math.inf
        return self.error / self.allowed


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """What the compiler says one program needs. None is unknown."""

    shared_bytes: int | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    code_digest: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shortage:
    """What a config ran out of: it needs more of ``resource`` than the ``limit``, in the resource's own unit."""

    resource: str
    needed: int
    limit: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """A time that nobody measured, in integer nanoseconds.

    The time lies between ``low_ns`` and ``high_ns`` four times out of five, as far as ``model`` knows. ``model`` names
    it with its version; ``terms`` are what it added up, in nanoseconds or as counts.
    """

    ns: int
    low_ns: int
    high_ns: int
    model: str
    terms: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self):
        if not 0 < self.low_ns <= self.ns <= self.high_ns:
            raise ValueError(f"a prediction lies in its interval, got {self!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One attempt at (kernel, direction, part, signature, device, environment, config).

    ``kernel`` is ``"op/name"``. ``part`` is ``""`` for a whole direction, else the launch that alone was searched.
    ``config`` is plain data. ``is_heuristic`` marks the config the kernel would choose without tuning.
    ``started_us`` is Unix time in microseconds. ``conditions`` are known for finals. ``shortage`` are the numbers of
    ``out_of_resources``, where they are known. ``repeatable`` is False where two runs on equal inputs gave different
    bits, None where that was not checked. ``features`` is how many feature problems the config ran and passed, None
    where that is unknown.
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
    is_heuristic: bool = False
    started_us: int = 0

    def __post_init__(self):
        if not is_direction(self.direction):
            raise ValueError(f"direction must be a word such as 'fwd', got {self.direction!r}")
        if self.status.is_measured != (self.measurement is not None):
            raise ValueError(
                f"a trial has a measurement if and only if it is ok or unproven; status={self.status}"
            )
        if (self.status is Status.PREDICTED) != (self.prediction is not None):
            raise ValueError(
                f"a trial has a prediction if and only if it is predicted; status={self.status}"
            )
        if self.shortage is not None and self.status is not Status.OUT_OF_RESOURCES:
            raise ValueError(f"only out_of_resources has a shortage; status={self.status}")
        if self.features is not None and self.features < 0:
            raise ValueError(f"features is a count, got {self.features}")
        if not self.status.is_fine and not self.reason:
            raise ValueError(f"a trial with status={self.status} needs a reason")

    @property
    def config_digest(self) -> str:
        """The digest of ``config``."""
        return config_digest(self.config)

    @property
    def worst_error(self) -> OutputError | None:
        """The output closest to (or furthest past) its limit."""
        return max(self.errors, key=lambda e: e.ratio, default=None)
