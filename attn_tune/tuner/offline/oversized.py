"""Remembers what did not fit while the candidates of one part are compiled side by side."""

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from attn_tune.schema.trial import Shortage, Status
from attn_tune.tuner.offline.compilers.protocol import Compiled
from attn_tune.tuner.plan.dominance import needs_at_least

type Config = Mapping[str, Any]


class Oversized:
    """The configs of one part that did not fit. Several threads may ask and add."""

    def __init__(self, grows: Sequence[str]):
        """Starts empty; ``grows`` are the knobs of which more never needs less."""
        self._grows = tuple(grows)
        self._lock = threading.Lock()
        self._failed: list[tuple[Config, Shortage]] = []

    @property
    def is_empty(self) -> bool:
        """Whether everything has fitted so far."""
        with self._lock:
            return not self._failed

    def size(self, config: Config) -> float:
        """A key to sort by: a config comes after those that may rule it out."""
        return math.prod(config[name] for name in self._grows if name in config)

    def add(self, config: Config, compiled: Compiled) -> None:
        """Notes a config that the compiler found to need too much."""
        if compiled.status is Status.OUT_OF_RESOURCES and compiled.shortage is not None:
            with self._lock:
                self._failed.append((config, compiled.shortage))

    def ruled_out(self, config: Config) -> Compiled | None:
        """The answer for a config that cannot fit, naming the one that it follows from; None where nothing is known."""
        with self._lock:
            failed = list(self._failed)
        for smaller, lack in failed:
            if self._grows and needs_at_least(config, smaller, self._grows):
                return Compiled(
                    status=Status.OUT_OF_RESOURCES,
                    reason=self._reason(smaller, lack),
                    shortage=lack,
                    pruned=True,
                )
        return None

    def _reason(self, smaller: Config, lack: Shortage) -> str:
        knobs = ", ".join(f"{name}={smaller[name]}" for name in self._grows)
        return (
            f"not compiled: needs at least what {knobs} needs, which is {lack.needed} of {lack.resource} "
            f"where {lack.limit} is the limit"
        )
