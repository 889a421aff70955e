"""Results of a search so far: the times of right configs, and the programs that configs lower to."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attn_tune.schema.config import config_digest, config_to_json


@dataclass
class PartResults:
    """Results of one part: configs and their median times, the fastest first."""

    times: dict[str, float] = field(default_factory=dict)
    configs: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def add(self, config: Mapping[str, Any], median_ns: float) -> None:
        """Note a right config; of two times the lower one stays."""
        digest = config_digest(config)
        self.configs[digest] = config
        self.times[digest] = min(median_ns, self.times.get(digest, math.inf))

    def best(self, count: int) -> list[Mapping[str, Any]]:
        """The fastest ``count`` configs."""
        order = sorted(self.times, key=lambda digest: (self.times[digest], digest))
        return [self.configs[digest] for digest in order[:count]]

    def time_of_place(self, place: int) -> float:
        """The ``place``-th best time; infinite when there are fewer."""
        times = sorted(self.times.values())
        return times[place - 1] if len(times) >= place else math.inf


@dataclass
class Programs:
    """The programs of one part that were tried. Two configs that lower to one program need one run.

    ``names`` spells the config that was tried first, by digest of its program.
    """

    names: dict[str, str] = field(default_factory=dict)
    _first: dict[str, str] = field(default_factory=dict)
    _twins: dict[str, str] = field(default_factory=dict)

    def add(self, config: Mapping[str, Any], program: str) -> None:
        """Note what a config lowers to; nothing where that is not known (``""``)."""
        if not program:
            return
        digest = config_digest(config)
        if program in self._first:
            self._twins[digest] = self._first[program]
            return
        self._first[program] = digest
        self.names = {**self.names, program: config_to_json(config)}

    def twin_of(self, digest: str) -> str:
        """The config that was run in place of this one: itself, or the first with the same program."""
        return self._twins.get(digest, digest)
