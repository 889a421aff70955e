"""The answer of a lookup, with where it came from."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attn_tune.schema.config import is_mapping
from attn_tune.schema.decision import Rule
from attn_tune.schema.environment import Grade
from attn_tune.schema.words import config_words


class Rung(enum.StrEnum):
    """The step of the ladder that answered, best first."""

    EXPLICIT = "explicit"
    """The config that the call itself gave."""
    OVERRIDE = "override"
    """An entry of the overrides."""
    EXACT = "exact"
    """A row of the same problem."""
    BUCKET = "bucket"
    """A row whose scalable fields agree after rounding up to powers of two."""
    NEIGHBOUR = "neighbour"
    """The nearest row whose scalable fields are within a factor of two."""
    UNTUNED = "untuned"
    """Nothing stored: the kernel's untuned config."""


class DeviceLevel(enum.StrEnum):
    """The part of the device that a stored row shares with this one, best first."""

    EXACT = "exact"
    """Equal devices, in all that identifies one."""
    VARIANT = "variant"
    """The same model, with another figure such as its power limit."""
    FAMILY = "family"
    """Another model of the same family, such as ``sm_90``."""


class SourceKind(enum.StrEnum):
    """The kind of source of a pack or a config, in the order they are asked."""

    OVERRIDE = "override"
    """An entry of the overrides."""
    OVERLAY = "overlay"
    """A pack of ``use_pack``."""
    USER = "user"
    """A pack of ``ATTN_TUNE_PACKS`` or of the user's data directory."""
    WHEEL = "wheel"
    """A pack of another installed distribution."""
    SHIPPED = "shipped"
    """A pack of attn-tune itself."""


class Knobs(dict[str, Any]):
    """A config as plain data that all callers share, so no caller may change it; parts of it likewise."""

    __slots__ = ()

    def __init__(self, data: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()):
        super().__init__((k, Knobs(v) if is_mapping(v) else v) for k, v in dict(data).items())

    def _refuse(self, *args: Any, **more: Any) -> Any:
        raise TypeError("the config of an answer is shared and cannot be changed; copy it with dict()")

    __setitem__ = __delitem__ = __ior__ = _refuse  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return (Knobs, (dict(self),))

    def __deepcopy__(self, memo: Any) -> "Knobs":
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """A stored row, or a kernel, that would have answered but may not.

    Attributes:
      subject: the row or the kernel, in words.
      reason: why it may not answer.
    """

    subject: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The kernel and config to run, with the reasons.

    Attributes:
      op, direction, signature: the question; the signature is its text.
      device: the device that was asked for.
      rung: the step that answered.
      source_kind: the kind of ``source``; None for a rung without one.
      kernel: the kernel's name within the op.
      config: plain data, as it runs; None only where nothing supports the problem.
      source: ``"name version"`` of the pack, ``""`` for a rung without one; of an override, the entry and its
        file, or for a frozen one the pack that answered when it was frozen.
      pack_digest: the pack's digest, ``""`` likewise.
      level: the device level of the row that answered; None for a rung without one.
      grade: the grade of that row; ``stale`` says that the kernel's source has changed since the row was measured.
      row_signature: the signature of that row; ``""`` for a rung without one.
      state: the row's reason for its config, a value of ``Rule``; ``""`` for a rung without one.
      adapted_from: the row's config as stored, where the kernel changed it for this problem; None where it did not.
      distance: sum of ``|log2(asked / tuned)|`` over the scalable fields, 0 for an exact answer.
      gain_ppm: the row's gain over the untuned config, at the shape and device where it was measured.
      regret_ppm: the row's bound on its regret, at the shape and device where it was measured.
      repeatable: False where runs of the row on equal inputs gave different bits; None where that is unknown.
      features: number of feature problems that the row's config passed; None where that is unknown.
      rejected: candidates that would have answered earlier, with the reasons against them.
    """

    op: str
    direction: str
    signature: str
    device: str
    kernel: str
    config: Mapping[str, Any] | None
    rung: Rung
    source: str = ""
    source_kind: SourceKind | None = None
    pack_digest: str = ""
    level: DeviceLevel | None = None
    grade: Grade | None = None
    row_signature: str = ""
    distance: float = 0.0
    adapted_from: Mapping[str, Any] | None = None
    state: str = ""
    gain_ppm: int | None = None
    regret_ppm: int | None = None
    repeatable: bool | None = None
    features: int | None = None
    rejected: tuple[Rejection, ...] = ()

    @property
    def is_miss(self) -> bool:
        """Nothing stored answered."""
        return self.rung is Rung.UNTUNED

    def __str__(self) -> str:
        where = f" from {self.source}" if self.source else ""
        if self.adapted_from is not None:
            where += f", adapted from {config_words(changed_knobs(self.adapted_from, self.config or {}))}"
        if self.is_miss:
            where = ", nothing stored answers"
        if self.state == Rule.HEURISTIC:
            where += ", proven untuned config"
        if self.state == Rule.PREDICTED:
            where += ", predicted: nothing was measured"
        if self.repeatable is False:
            where += ", bits differ from run to run"
        return f"{self.op}/{self.kernel} {self.direction}: {config_words(self.config or {})} ({self.rung}{where})"


def changed_knobs(stored: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The knobs of ``stored`` that ``config`` has at other values, as stored; in a part, those of the part."""
    return {
        name: changed_knobs(value, other) if is_mapping(value) and is_mapping(other) else value
        for name, value in stored.items()
        if (other := config.get(name)) != value
    }
