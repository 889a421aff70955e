"""What a timer is: it launches calls and says how long the device was busy with each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from attn_tune.schema.errors import AttnTuneError

type Flush = Callable[[], Any]
type Check = Callable[[Sequence[Any]], object]

# Of outputs that are kept until they are checked; at least one is.
HELD_BYTES = 2**30


class TimerError(AttnTuneError):
    """A timer cannot be used here, or its trace cannot be read."""


def unchecked(outputs: Sequence[Any]) -> None:
    """A check that lets everything pass."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One thing to time: ``run()`` starts it and returns its outputs. ``repeats`` runs are averaged into one sample.

    ``check`` is given the outputs of every timed run, while the clock stands. ``output_bytes`` is the size of those of
    one run; 0 is unknown.
    """

    run: Callable[[], Any]
    repeats: int = 1
    check: Check = unchecked
    output_bytes: int = 0

    @property
    def most_held(self) -> int:
        """The number of runs whose outputs may be kept at a time, at least 1."""
        return max(1, HELD_BYTES // max(1, self.output_bytes))


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

        Returns one duration a launch, in nanoseconds, at least 1. It includes neither the time of the flush nor
        that of ``Launch.check``.

        Raises:
          TimerError: the device's records do not fit what was launched.
        """
        ...
