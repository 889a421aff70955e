"""Request to a tuner's process and its record: the process writes the record, its parent reads it.

The record's file is rewritten whole after each step, so that what a tuner finished stands when a later step crashes or
hangs.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Task:
    """Problem to tune: causal or full flash attention, BTNH, all heads of one size."""

    batch: int = 4
    length: int = 4096
    heads: int = 16
    kv_heads: int = 16
    head_dim: int = 128
    dtype: str = "bfloat16"
    causal: bool = True


@dataclass(frozen=True, kw_only=True)
class Step:
    """One direction, tuned: ``start_s`` and ``end_s`` are ``time.monotonic()``, which all processes of a host share.

    ``statuses`` counts the configs that were handled, by what became of them; ``"ok"`` are those with a time.
    ``phases_s`` is wall time by phase, summed over configs; ``detail`` is the rest of the tuner's report.
    """

    direction: str
    start_s: float
    end_s: float
    statuses: Mapping[str, int]
    best_us: float | None = None
    phases_s: Mapping[str, float] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def configs(self) -> int:
        """Number of configs that were handled."""
        return sum(self.statuses.values())

    @property
    def wall_s(self) -> float:
        """From the call to the end."""
        return self.end_s - self.start_s


@dataclass(frozen=True, kw_only=True)
class Record:
    """One process: its steps in order, and why there are no more, if there should be."""

    steps: tuple[Step, ...] = ()
    device: Mapping[str, Any] = field(default_factory=dict)
    failed: str = ""

    def write(self, path: Path) -> None:
        """Replaces the file at ``path``."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self), default=str))
        os.replace(new, path)

    @classmethod
    def read(cls, path: Path) -> "Record":
        """The record at ``path``; an empty one when there is none."""
        if not path.exists():
            return cls()
        data = json.loads(path.read_text())
        return cls(**{**data, "steps": tuple(Step(**step) for step in data["steps"])})


@dataclass(frozen=True, kw_only=True)
class Request:
    """Request to one process. ``kernel``, ``direction`` and ``max_trials`` concern attn-tune alone."""

    task: Task
    record: Path
    kernel: str = "flash_attention/triton"
    direction: str = "fwd"
    max_trials: int | None = None
