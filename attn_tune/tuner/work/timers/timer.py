"""`Timer`: launches calls and returns how long the device was busy with each."""

import functools
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
class Timed:
    """A call to time.

    Attributes:
      run: starts it and returns its outputs; it takes what ``refresh`` returns, nothing without one.
      refresh: makes the inputs of one run, which consumes them.
    """

    run: Callable[..., Any]
    refresh: Callable[[], Any] | None = None

    def ready(self) -> Callable[[], Any]:
        """One run whose inputs are on the device: calling it starts the run and nothing else."""
        if self.refresh is None:
            return self.run
        import jax

        return functools.partial(self.run, jax.block_until_ready(self.refresh()))


@dataclass(frozen=True, kw_only=True)
class Launch(Timed):
    """A call to time, and how a sample of it is taken.

    Attributes:
      repeats: runs that are averaged into one sample.
      check: is given the outputs of every timed run, while the clock stands.
      output_bytes: the size of the outputs of one run; 0 is unknown.
    """

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
        """Run each launch once (``repeats`` times), in order, each after a ``flush`` of the cache.

        Returns one duration a launch, in nanoseconds, at least 1. It includes neither the time of the flush nor
        that of ``Launch.check``.

        Raises:
          TimerError: the device's records do not fit what was launched.
        """
        ...
