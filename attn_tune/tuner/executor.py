"""Executors: who runs a request. The sweep knows only this interface; a pool or a fleet can stand behind it."""

from collections.abc import Callable
from typing import Protocol

from attn_tune.tuner.protocol import Finals, FinalsOutcome, Identity, Outcome, Run


class Executor(Protocol):
    """Runs requests one after the other on one device.

    No config can hurt the caller: whatever it does comes back as an ``Outcome``. Each call raises ``Interrupted`` when
    ``interrupt()`` turns true while it waits.
    """

    interrupt: Callable[[], bool]

    def identify(self) -> Identity:
        """The device that the requests run on, and its software."""
        ...

    def run(self, request: Run) -> Outcome:
        """Compiles, validates and measures one config."""
        ...

    def finals(self, request: Finals) -> FinalsOutcome:
        """Measures right configs against one another."""
        ...

    def close(self) -> None:
        """Ends the worker."""
        ...
