"""Progress of a running sweep on stderr: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

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
            self.done = min(self.done + 1, self.total) if self.total else self.done
        if trial.measurement is None or trial.part != WHOLE:
            return
        median = trial.measurement.median_ns
        case = self.running.get((trial.signature, trial.direction))
        if case is not None and (case.best_ns is None or median < case.best_ns):
            case.best_ns, case.best = median, trial.kernel.rpartition("/")[2]

    def _progress(self, event: "Progress") -> None:
        from attn_tune.tuner.run.progress import ProgressKind

        self.done, self.total = event.done, event.total
        if event.case is None:
            return
        key = (event.case.signature, event.case.direction)
        if event.kind is ProgressKind.CASE_STARTED:
            self.shown = self.running[key] = Running(label=_short(event.case))
        elif event.kind is ProgressKind.KERNEL_STARTED and key in self.running:
            self.running[key].phase = f"searching {event.kernel.rpartition('/')[2]}"
        elif event.kind is ProgressKind.FINALS_STARTED and key in self.running:
            self.running[key].phase = "finals"
        elif event.kind in (ProgressKind.CASE_FINISHED, ProgressKind.CASE_RETURNED):
            self.running.pop(key, None)
            # The last one stays in sight until another one begins.
            self.shown = next(reversed(self.running.values()), self.shown)

    @property
    def label(self) -> str:
        """The case that was begun last, and how many others run; ``starting`` before the first."""
        label, others = self.shown.label or "starting", len(self.running) - 1
        return f"{label} and {others} more" if others > 0 else label

    @property
    def failed(self) -> int:
        """Configs that ran or compiled and went wrong; what was refused beforehand does not count."""
        return sum(count for status, count in self.statuses.items() if status.is_failure)

    @property
    def right(self) -> int:
        """Configs that are right, or, where nothing runs, that fit."""
        return sum(count for status, count in self.statuses.items() if status.is_fine)

    @property
    def refused(self) -> int:
        """Configs and kernels that were refused before compiling."""
        return sum(count for status, count in self.statuses.items() if status.is_refused)

    def text(self) -> str:
        """``37/120  1.4 configs/s  eta 1m00s  35 ok  2 failed  searching xla  best 48.3 us (xla)``"""
        words = [f"{self.done}/{self.total}"]
        elapsed = time.monotonic() - self.started
        if self.done and elapsed > 0:
            rate = self.done / elapsed
            words.append(f"{rate:.2g} configs/s")
            words.append(f"eta {clock(max(0, self.total - self.done) / rate)}")
        words += [f"{self.right} ok", f"{self.failed} failed"]
        if self.shown.phase:
            words.append(self.shown.phase)
        if self.shown.best_ns is not None:
            from attn_tune.schema.words import duration

            words.append(f"best {duration(self.shown.best_ns)} ({self.shown.best})")
        return "  ".join(words)


def _short(case: Any) -> str:
    first, *more = case.names or (case.signature.text,)
    return f"{first} (+{len(more)}) {case.direction}" if more else f"{first} {case.direction}"


def clock(seconds: float) -> str:
    """``42s``, ``3m05s``, ``2h10m``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


class LineWatch:
    """Plain lines: one at the start of each case, and one every so often."""

    def __init__(self, tally: Tally):
        self.tally = tally
        self._last = 0.0
        self._label = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return None

    def show(self) -> None:
        """Print a line if one is due."""
        now = time.monotonic()
        if self.tally.label != self._label or now - self._last >= LINE_EVERY_S:
            self._label, self._last = self.tally.label, now
            print(f"{self.tally.label}: {self.tally.text()}", file=sys.stderr, flush=True)


class BarWatch:
    """A live bar; ``note`` lines scroll above it."""

    def __init__(self, tally: Tally):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self.tally = tally
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
        self._bar.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bar.stop()

    def show(self) -> None:
        """Redraw the bar."""
        tally = self.tally
        self._bar.update(
            self._task,
            description=tally.label,
            completed=tally.done,
            total=tally.total or None,
            text=tally.text(),
        )


def watcher(tally: Tally) -> LineWatch | BarWatch:
    """A bar where stderr is a terminal, lines elsewhere."""
    return BarWatch(tally) if sys.stderr.isatty() else LineWatch(tally)
