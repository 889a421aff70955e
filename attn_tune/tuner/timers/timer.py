"""What a timer is: it launches calls and says how long the device was busy with each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from attn_tune.schema.errors import AttnTuneError

type Flush = Callable[[], Any]


class TimerError(AttnTuneError):
    """A timer cannot be used here, or its trace cannot be read."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One thing to time: ``run()`` starts it and returns its outputs. ``repeats`` runs are averaged into one sample."""

    run: Callable[[], Any]
    repeats: int = 1


class Timer(Protocol):
    """Times launches.

    Attributes:
      name: what ``Protocol.timer`` of a measurement says.
      wants_repeats: short calls must be repeated to be seen above the clock's own cost.
    """

    name: str
    wants_repeats: bool

    def sample(self, launches: Sequence[Launch], flush: Flush | None) -> list[int]:
        """Runs each launch once (``repeats`` times), in order, each after a ``flush`` of the cache.

        Returns one duration a launch, in nanoseconds, at least 1. What the flush takes is not in it.

        Raises:
          TimerError: the device's records do not fit what was launched.
        """
        ...
