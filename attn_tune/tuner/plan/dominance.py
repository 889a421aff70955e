"""Dominance: a config that ran out of a resource rules out those that need at least as much of everything."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attn_tune.schema.trial import Shortage

type ConfigDict = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RuledOut:
    """The reason why a config cannot fit, and what ran out for the smaller one that shows it, where that is known.

    Attributes:
      reason: a sentence.
      shortage: the shortage of the smaller config.
    """

    reason: str
    shortage: Shortage | None = None


@dataclass
class Exhausted:
    """The configs of one part that ran out of a resource, with the compiler's or the device's message.

    ``grows`` are the knobs (``Search.grows``) of which more never needs less; in all others two configs must be equal.

    Attributes:
      known: each such config, with the words and the shortage.
    """

    grows: tuple[str, ...]
    known: list[tuple[ConfigDict, str, Shortage | None]] = field(default_factory=list)

    def add(self, config: ConfigDict, message: str, shortage: Shortage | None = None) -> None:
        """Note one that ran out; ``message`` ends the sentence that rules larger ones out."""
        if self.grows:
            self.known.append((config, message, shortage))

    def ruled_out(self, config: ConfigDict) -> RuledOut | None:
        """The reason why ``config`` cannot fit either, None if there is none."""
        for smaller, message, shortage in tuple(self.known):
            if needs_at_least(config, smaller, self.grows):
                knobs = ", ".join(f"{name}={smaller[name]}" for name in self.grows)
                reason = f"not compiled: needs at least what {knobs} needs, {message}"
                return RuledOut(reason, shortage)
        return None

    def without_ruled_out(self, configs: Iterable[ConfigDict]) -> tuple[ConfigDict, ...]:
        """The configs that nothing rules out."""
        return tuple(config for config in configs if not self.ruled_out(config))


def needs_at_least(config: ConfigDict, other: ConfigDict, grows: Iterable[str]) -> bool:
    """Whether ``config`` has as much or more than ``other`` of every knob in ``grows``, and is equal in the others."""
    growing = set(grows)
    if config.keys() != other.keys() or not growing <= config.keys():
        return False
    return all(value >= other[name] if name in growing else value == other[name] for name, value in config.items())
