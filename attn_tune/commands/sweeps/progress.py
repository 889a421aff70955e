"""Progress of a running sweep on stderr: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from attn_tune.commands.shared.selection import brief
from attn_tune.schema import Stage, Status, Trial
from attn_tune.schema.trial import WHOLE

if TYPE_CHECKING:
    from attn_tune.tuner.run.progress import Event, Progress

LINE_EVERY_S = 10.0


@dataclass
class Running:
    """A case that runs.

    Attributes:
      label: the names of the problem and the direction.
      phase: the kernel that is searched, or ``"finals"``.
      best: the kernel of the fastest right config.
      best_ns: the time of that config.
    """

    label: str
    phase: str = ""
    best: str = ""
    best_ns: float | None = None


@dataclass
class Tally:
    """Counts of a sweep so far.

    Attributes:
      statuses: the number of trials by status.
      done: the number of configs that were tried.
      total: the number of configs of the plan.
      running: the cases that run, the one begun last at the end.
      shown: the case whose name is shown.
      started: the start, by the monotonic clock.
    """

    statuses: Counter[Status] = field(default_factory=Counter)
    done: int = 0
    total: int = 0
    running: dict[tuple[Any, str], Running] = field(default_factory=dict)
    shown: Running = field(default_factory=lambda: Running(label=""))
    started: float = field(default_factory=time.monotonic)

    def add(self, event: "Event") -> None:
        """Count one event."""
        if isinstance(event, Trial):
            self._trial(event)
        else:
            self._progress(event)

    def _trial(self, trial: Trial) -> None:
        self.statuses[trial.status] += 1
        if trial.stage is Stage.SEARCH:
            self.done = min(self.done + 1, self.total or self.done + 1)
        case = self.running.get((trial.signature, trial.direction))
        if case is None or trial.measurement is None or trial.part != WHOLE:
            return
        median = trial.measurement.median_ns
        if case.best_ns is None or median < case.best_ns:
            case.best_ns, case.best = median, trial.kernel.rpartition("/")[2]

    def _progress(self, event: "Progress") -> None:
        from attn_tune.tuner.run.progress import ProgressKind

        self.done, self.total = event.done, event.total
        if event.case is None:
            return
        key = (event.case.signature, event.case.direction)
        one = self.running.get(key, Running(label=""))
        match event.kind:
            case ProgressKind.CASE_STARTED:
                name = brief("+".join(event.case.names)) or event.case.signature.text
                self.shown = Running(label=f"{name} {event.case.direction}")
                self.running[key] = self.shown
            case ProgressKind.KERNEL_STARTED:
                one.phase = f"searching {event.kernel.rpartition('/')[2]}"
            case ProgressKind.FINALS_STARTED:
                one.phase = "finals"
            case ProgressKind.CASE_FINISHED | ProgressKind.CASE_RETURNED:
                self.running.pop(key, None)
                # The last one stays in sight until another one begins.
                self.shown = next(reversed(self.running.values()), self.shown)

    @property
    def label(self) -> str:
        """The case that was begun last, and how many others run; ``starting`` before the first."""
        label, others = self.shown.label or "starting", len(self.running) - 1
        return f"{label} and {others} more" if others > 0 else label

    def count(self, trait: str) -> int:
        """The trials whose status has a trait: ``is_fine`` (right, or fits where nothing runs), ``is_failure``."""
        return sum(count for status, count in self.statuses.items() if getattr(status, trait))

    def text(self) -> str:
        """``37/120  1.4 configs/s  eta 1m00s  35 ok  2 failed  searching xla  best 48.3 us (xla)``"""
        words = [f"{self.done}/{self.total}"]
        elapsed = time.monotonic() - self.started
        if self.done and elapsed > 0:
            rate = self.done / elapsed
            words.append(f"{rate:.2g} configs/s")
            words.append(f"eta {clock(max(0, self.total - self.done) / rate)}")
        words += [f"{self.count('is_fine')} ok", f"{self.count('is_failure')} failed"]
        if self.shown.phase:
            words.append(self.shown.phase)
        if self.shown.best_ns is not None:
            from attn_tune.schema.words import duration

            words.append(f"best {duration(self.shown.best_ns)} ({self.shown.best})")
        return "  ".join(words)


def clock(seconds: float) -> str:
    """``42s``, ``3m05s``, ``2h10m``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


class View:
    """The progress on stderr: a bar on a terminal; elsewhere a line at the start of each case and every so often."""

    def __init__(self, tally: Tally):
        self.tally = tally
        self._last, self._label = 0.0, ""
        self._bar: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

            # Lines of ``note`` scroll above it.
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[text]}", markup=False),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("starting", total=None, text="")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._bar:
            self._bar.stop()

    def show(self) -> None:
        """Redraw the bar, or print a line if one is due."""
        tally, now = self.tally, time.monotonic()
        if self._bar:
            counts = {"completed": tally.done, "total": tally.total or None}
            self._bar.update(self._task, description=tally.label, text=tally.text(), **counts)
        elif tally.label != self._label or now - self._last >= LINE_EVERY_S:
            self._label, self._last = tally.label, now
            print(f"{tally.label}: {tally.text()}", file=sys.stderr, flush=True)
