"""Knobs: the typed fields of configs. One declaration gives the check, the values worth trying and the docs table.

A config is a frozen dataclass with ``Knobs`` as its base, whose fields name their knob::

    @dataclass(frozen=True, kw_only=True, slots=True)
    class ForwardConfig(Knobs):
        block_q: Annotated[int, PowerOfTwo(16, 512, tried=(64, 128), doc="query rows of a tile")]
        persistent: Annotated[bool, Flag(doc="one program a multiprocessor")] = False

A field of type ``int | None`` may be None too.
"""

import abc
import dataclasses
import functools
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from attn_tune.schema.errors import UsageError

DECIDES_NO_CODE = "checks and candidates of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class Knob(abc.ABC):
    """The values that one field of a config may have.

    Attributes:
      tried: the values worth trying, before a problem narrows them. Empty if they follow from the problem alone.
      doc: what it chooses, as a phrase.
    """

    tried: tuple[Any, ...] = ()
    doc: str = ""

    @property
    @abc.abstractmethod
    def allowed(self) -> str:
        """The values that ``admits``, as the rest of a sentence: "a power of two between 16 and 512"."""

    @abc.abstractmethod
    def admits(self, value: Any) -> bool:
        """Whether a field may have this value."""


@dataclass(frozen=True, slots=True)
class PowerOfTwo(Knob):
    """A power of two from ``low`` to ``high``."""

    low: int
    high: int

    @property
    def allowed(self) -> str:
        return f"a power of two between {self.low} and {self.high}"

    def admits(self, value: Any) -> bool:
        return type(value) is int and self.low <= value <= self.high and not value & (value - 1)


@dataclass(frozen=True, slots=True)
class Range(Knob):
    """A whole number from ``low`` to ``high``."""

    low: int
    high: int

    @property
    def allowed(self) -> str:
        return f"between {self.low} and {self.high}"

    def admits(self, value: Any) -> bool:
        return type(value) is int and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Multiple(Knob):
    """A positive multiple of ``step``."""

    step: int = 1

    @property
    def allowed(self) -> str:
        return "a positive integer" if self.step == 1 else f"a positive multiple of {self.step}"

    def admits(self, value: Any) -> bool:
        return type(value) is int and value >= self.step and value % self.step == 0


@dataclass(frozen=True, slots=True)
class Choice(Knob):
    """One of several values, all of which are tried unless ``tried`` names fewer."""

    values: tuple[Any, ...]

    def __post_init__(self):
        if not self.tried:
            object.__setattr__(self, "tried", self.values)

    @property
    def allowed(self) -> str:
        *others, last = map(str, self.values)
        return f"{', '.join(others)} or {last}"

    def admits(self, value: Any) -> bool:
        return any(type(value) is type(known) and value == known for known in self.values)


@dataclass(frozen=True, slots=True)
class Flag(Knob):
    """True or false."""

    def __post_init__(self):
        if not self.tried:
            object.__setattr__(self, "tried", (False, True))

    @property
    def allowed(self) -> str:
        return "true or false"

    def admits(self, value: Any) -> bool:
        return type(value) is bool


class Knobs:
    """The base of configs: each field is checked by its knob, then all of them together by ``conflict``.

    Raises:
      UsageError: a value is not allowed; the message names the knob, what it may be and the value.
    """

    __slots__ = ()

    def __post_init__(self):
        for name, (knob, is_optional) in knobs_of(type(self)).items():
            value = getattr(self, name)
            if not (knob.admits(value) or (value is None and is_optional)):
                allowed = f"{knob.allowed}, or None" if is_optional else knob.allowed
                raise UsageError(f"{name} must be {allowed}, got {value!r}")
        if reason := self.conflict():
            raise UsageError(reason)

    def conflict(self) -> str | None:
        """The reason that these values cannot go together, or None."""
        return None


@functools.cache
def knobs_of(config: type) -> dict[str, tuple[Knob, bool]]:
    """The knobs of a config class by field, each with whether the field may be None; parts are left out."""
    hints = typing.get_type_hints(config, include_extras=True)
    found = {}
    for field in dataclasses.fields(config):
        knob = next((x for x in getattr(hints[field.name], "__metadata__", ()) if isinstance(x, Knob)), None)
        if knob is not None:
            kinds = typing.get_args(typing.get_args(hints[field.name])[0])
            found[field.name] = (knob, type(None) in kinds)
    return found


def tried(config: type, name: str) -> tuple[Any, ...]:
    """The values of a knob that are worth trying."""
    return knobs_of(config)[name][0].tried


def parts_of(config: Any) -> Iterator[tuple[str, Any]]:
    """The launches of a config by name, or the config itself, unnamed, if it is one launch."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    parts = {name: value for name, value in values.items() if dataclasses.is_dataclass(value)}
    yield from parts.items() if parts else (("", config),)


def first_reason[P, D](infeasible: Callable[[P, D, Any], str | None], problem: P, device: D, config: Any) -> str | None:
    """The first reason why a launch of the config cannot run, with the launch's name; for ``Search.infeasible``."""
    for part, launch in parts_of(config):
        if reason := infeasible(problem, device, launch):
            return f"{part}: {reason}" if part else reason
    return None
