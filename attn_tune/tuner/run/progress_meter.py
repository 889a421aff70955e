"""Counters of a sweep's progress. Its threads share one meter."""

import threading
import time
from dataclasses import dataclass, field

from attn_tune.tuner.plan.case import Case
from attn_tune.tuner.run.progress import Progress, ProgressKind


@dataclass
class Meter:
    """Counts configs, ``done`` of ``todo``, and the time they take."""

    todo: int
    done: int = 0
    started: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def advance(self, configs: int) -> None:
        """Adds ``configs`` that were tried, or that turned out not to be needed."""
        with self._lock:
            self.done += configs

    def progress(
        self, kind: ProgressKind, *, case: Case | None = None, kernel: str = "", reason: str = ""
    ) -> Progress:
        """An event of ``kind``, with where the sweep stands now."""
        done, elapsed = self.done, self.elapsed_s
        total = max(self.todo, done)
        return Progress(
            kind=kind,
            done=done,
            total=total,
            elapsed_s=elapsed,
            eta_s=elapsed / done * (total - done) if done else None,
            case=case,
            kernel=kernel,
            reason=reason,
        )
