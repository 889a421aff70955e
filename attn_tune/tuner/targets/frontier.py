"""Dominance: a config that ran out of a resource rules out those that need more of it."""

import threading
from collections.abc import Mapping
from typing import Any

from attn_tune.schema.config import config_digest, config_to_json
from attn_tune.schema.trial import Shortage, Status
from attn_tune.tuner.targets.protocol import Compiled

# Knobs of which more is never less memory. All others must be equal.
_SIZES = ("block_", "num_stages")

type Config = Mapping[str, Any]


def size_of(config: Config) -> float:
    """The product of a config's sizes: in this order what rules out comes before what it rules out."""
    product = 1.0
    for name, value in config.items():
        if isinstance(value, Mapping):
            product *= size_of(value)
        elif _is_size(name, value):
            product *= value
    return product


def needs_no_less(config: Config, than: Config) -> bool:
    """Whether ``config`` equals ``than`` but for sizes, none of which is smaller."""
    if config.keys() != than.keys():
        return False
    for name, value in config.items():
        other = than[name]
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            if not needs_no_less(value, other):
                return False
        elif _is_size(name, value) and _is_size(name, other):
            if value < other:
                return False
        elif value != other:
            return False
    return True


class Frontier:
    """The configs of one part that did not fit. Several threads may ask and add."""

    def __init__(self):
        self._lock = threading.Lock()
        self._failed: list[tuple[Config, Compiled]] = []

    def add(self, config: Config, compiled: Compiled) -> None:
        """Notes a config that the compiler found to need too much."""
        if compiled.status is Status.OUT_OF_RESOURCES and compiled.shortage is not None:
            with self._lock:
                self._failed.append((config, compiled))

    def ruled_out(self, config: Config) -> Compiled | None:
        """The answer for a config that cannot fit, with the one that it follows from; None where nothing is known."""
        with self._lock:
            failed = list(self._failed)
        for smaller, compiled in failed:
            if needs_no_less(config, smaller) and config_digest(config) != config_digest(smaller):
                return _follows(smaller, compiled.shortage)
        return None


def _follows(smaller: Config, lack: Shortage | None) -> Compiled:
    assert lack is not None
    reason = (
        f"not compiled: {config_to_json(smaller)} needs {lack.needed} of {lack.resource}, limit {lack.limit}, "
        "and this config needs no less"
    )
    return Compiled(status=Status.OUT_OF_RESOURCES, reason=reason, shortage=lack)


def _is_size(name: str, value: Any) -> bool:
    return name.startswith(_SIZES) and isinstance(value, int) and not isinstance(value, bool)
