"""Counts of a running sweep, and what each of its devices does, from the events of the sweep."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attn_tune.commands.shared.selection import brief
from attn_tune.schema import Stage, Status, Trial
from attn_tune.schema.trial import WHOLE

if TYPE_CHECKING:
    from attn_tune.db import RunProgress
    from attn_tune.tuner.plan.case import Case
    from attn_tune.tuner.protocol import Phase
    from attn_tune.tuner.run.progress import Event, Progress

FINALS = "finals"
WAITING = "waiting"
# Of the best times of a case so many are kept.
_CURVE = 12
_PHASES = {
    "start": "starting",
    "prepare": "references",
    "compile": "compiling",
    "validate": "proving",
    "measure": "racing",
}


@dataclass
class _CaseTally:
    """A case that was begun.

    Attributes:
      point: the names of the problem.
      direction: the direction.
      best: the kernel of the fastest right config.
      best_ns: the time of that config.
      defaults: the times of the kernels' defaults.
      curve: the best time after each trial that measured a whole config.
    """

    point: str
    direction: str
    best: str = ""
    best_ns: float | None = None
    defaults: dict[str, float] = field(default_factory=dict)
    curve: list[float] = field(default_factory=list)

    def add(self, trial: Trial) -> None:
        """Take in a trial that measured a whole config."""
        assert trial.measurement is not None
        kernel, median = trial.kernel.rpartition("/")[2], trial.measurement.median_ns
        if trial.is_heuristic:
            self.defaults[kernel] = median
        if self.best_ns is None or median < self.best_ns:
            self.best, self.best_ns = kernel, median
        self.curve.append(self.best_ns)


@dataclass
class _Seat:
    """A device and what it does.

    Attributes:
      case: the case that it has or had last.
      kernel: the kernel that is searched.
      phase: the word of its phase.
      since_us: Unix time in microseconds at which the phase began.
      is_timing: whether a config is being timed.
    """

    case: _CaseTally | None = None
    kernel: str = ""
    phase: str = "starting"
    since_us: int = 0
    is_timing: bool = False


class Tally:
    """Counts of a sweep so far. Events may come from any thread; times are Unix times in microseconds.

    Attributes:
      statuses: the number of trials by status.
      done: the number of configs that were tried.
      total: the number of those and of the configs that are still to be tried.
      cases: the number of cases of the plan.
      cases_done: the number of those that ended.
      cases_decided: the number of those that ended with a winner.
      now_us: the clock.
      started_us: the start.
    """

    def __init__(self, *, compiles_only: bool = False, now_us: Callable[[], int] = lambda: time.time_ns() // 1000):
        self.statuses: Counter[Status] = Counter()
        self.done = self.total = self.cases = self.cases_done = self.cases_decided = 0
        self.now_us = now_us
        self.started_us = now_us()
        self._on_processor = False
        self._compiles_only = compiles_only
        self._lock = threading.RLock()
        self._names: tuple[str, ...] = ()
        self._seats: dict[int, _Seat] = {}
        self._running: dict[tuple[Any, str], _CaseTally] = {}

    def add(self, event: "Event", *, is_decided: bool = False) -> None:
        """Count one event; of a case that ends, ``is_decided`` says whether it has a winner."""
        from attn_tune.tuner.run.progress import Progress

        with self._lock:
            if isinstance(event, Trial):
                self._trial(event)
            elif isinstance(event, Progress):
                self._progress(event, is_decided=is_decided)
            else:
                self._phase(event.place, event.phase)

    def _trial(self, trial: Trial) -> None:
        self.statuses[trial.status] += 1
        if trial.stage is Stage.SEARCH:
            self.done = min(self.done + 1, self.total or self.done + 1)
        case = self._running.get((trial.signature, trial.direction))
        if case is not None and trial.measurement is not None and trial.part == WHOLE:
            case.add(trial)

    def _progress(self, event: "Progress", *, is_decided: bool) -> None:
        from attn_tune.tuner.run.progress import ProgressKind

        self.done, self.total = event.done, event.total
        self.cases, self._names = event.cases, event.devices
        self._on_processor = event.platform == "cpu"
        if event.case is None:
            if event.kind is ProgressKind.SWEEP_STARTED:
                for place in range(len(event.devices)):
                    self._seat(place)
            elif event.kind is ProgressKind.SWEEP_FINISHED:
                self._seats.clear()
            return
        key = (event.case.signature, event.case.direction)
        seat = self._seat(event.place)
        match event.kind:
            case ProgressKind.CASE_STARTED:
                seat.case = self._running[key] = _begun(event.case)
                seat.kernel = ""
                # What comes first; a new worker starts meanwhile.
                first = "references" if seat.phase == WAITING else seat.phase
                self._enter(seat, "compiling" if self._compiles_only else first)
            case ProgressKind.KERNEL_STARTED:
                seat.kernel = event.kernel.rpartition("/")[2]
            case ProgressKind.FINALS_STARTED:
                seat.kernel = ""
                self._enter(seat, FINALS)
            case ProgressKind.CASE_FINISHED:
                self._running.pop(key, None)
                self.cases_done += 1
                self.cases_decided += is_decided
                seat.kernel = ""
                self._enter(seat, WAITING)
            case ProgressKind.CASE_RETURNED:
                self._running.pop(key, None)
                # Its device is lost.
                self._seats.pop(event.place, None)

    def _phase(self, place: int, phase: "Phase | None") -> None:
        seat = self._seat(place)
        seat.is_timing = phase is not None and phase.value == "measure"
        # Those of finals, whose worker is a fresh one, are all called finals.
        if phase is not None and seat.phase != FINALS:
            self._enter(seat, _PHASES[phase.value])

    def _seat(self, place: int) -> _Seat:
        return self._seats.setdefault(place, _Seat(since_us=self.now_us()))

    def _enter(self, seat: _Seat, phase: str) -> None:
        if seat.phase != phase:
            seat.phase, seat.since_us = phase, self.now_us()

    @property
    def is_timing_here(self) -> bool:
        """Whether a config is being timed on this host's processor, where everything else that runs is in its way."""
        with self._lock:
            return self._on_processor and any(seat.is_timing for seat in self._seats.values())

    @property
    def counts(self) -> dict[Status, int]:
        """A copy of ``statuses``, which another thread may be changing."""
        with self._lock:
            return dict(self.statuses)

    def progress(self) -> "RunProgress":
        """The same as it is stored and shown."""
        from attn_tune.db import RunProgress

        with self._lock:
            return RunProgress(
                cases=self.cases,
                cases_done=self.cases_done,
                cases_decided=self.cases_decided,
                configs=self.total,
                configs_done=self.done,
                activity=tuple(self._activity(place, seat) for place, seat in sorted(self._seats.items())),
            )

    def _activity(self, place: int, seat: _Seat) -> Any:
        from attn_tune.db import Activity

        name = self._names[place] if place < len(self._names) else f"device {place}"
        case = seat.case
        if case is None:
            return Activity(device=name, phase=seat.phase, since_us=seat.since_us)
        default = case.defaults.get(case.best)
        return Activity(
            device=name,
            point=case.point,
            direction=case.direction,
            kernel=seat.kernel,
            phase=seat.phase,
            since_us=seat.since_us,
            best_kernel=case.best,
            best_us=None if case.best_ns is None else case.best_ns / 1e3,
            untuned_us=None if default is None else default / 1e3,
            curve_us=tuple(ns / 1e3 for ns in thinned(case.curve, _CURVE)),
        )


def _begun(case: "Case") -> _CaseTally:
    return _CaseTally(point=brief("+".join(case.names)) or case.signature.text, direction=case.direction)


def thinned(values: list[float], most: int) -> list[float]:
    """At most ``most`` of ``values``, evenly spaced, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]
