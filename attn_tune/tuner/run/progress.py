"""Events of a running sweep: trials, progress between them, and the phases of each device."""

import enum
import threading
import time
from dataclasses import dataclass, field

from attn_tune.schema.trial import Trial
from attn_tune.tuner.plan.case import Case
from attn_tune.tuner.protocol import Phase


class ProgressKind(enum.StrEnum):
    """The steps of a sweep that are announced."""

    SWEEP_STARTED = "sweep_started"
    """Before the first case."""
    CASE_STARTED = "case_started"
    """Before the first kernel of a case."""
    KERNEL_STARTED = "kernel_started"
    """Before the configs of a kernel on a case."""
    FINALS_STARTED = "finals_started"
    """Before a case's finals."""
    CASE_FINISHED = "case_finished"
    """All of a case was tried."""
    CASE_RETURNED = "case_returned"
    """The device of a case is lost; the rest of the case starts elsewhere, if it can."""
    SWEEP_FINISHED = "sweep_finished"
    """After the last event of any case."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The state of a sweep.

    ``done`` counts the configs that were tried, ``total`` those and the ones that are still to be tried: what turns out
    not to be needed is taken off ``total``. ``eta_s`` is None until something was measured. ``reason`` of
    ``SWEEP_FINISHED`` is ``"finished"``, ``"stopped"`` or ``"budget"``; of other kinds a remark, mostly empty.
    After ``CASE_RETURNED`` (its device is lost, for that ``reason``) the rest of the case starts elsewhere, if it can.

    Attributes:
      kind: the step.
      elapsed_s: seconds since the start of the sweep.
      case: the case of the step, where it has one.
      kernel: the id of the kernel of ``KERNEL_STARTED``.
      place: the place of the case's device among those of the sweep.
      cases: the number of cases in which something can be run.
      devices: the names of the devices, by place; empty where they have none.
      platform: JAX's name of the platform of the devices.
    """

    kind: ProgressKind
    done: int
    total: int
    elapsed_s: float
    eta_s: float | None = None
    case: Case | None = None
    kernel: str = ""
    reason: str = ""
    place: int = 0
    cases: int = 0
    devices: tuple[str, ...] = ()
    platform: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseEntered:
    """A worker has entered a phase. It comes at once, and so in no order with the trials of other devices.

    Attributes:
      place: the place of the device among those of the sweep.
      phase: the phase; None once the request is answered.
    """

    place: int
    phase: Phase | None


type Event = Trial | Progress | PhaseEntered


@dataclass
class ProgressMeter:
    """Counts configs, ``done`` of ``todo``, and the time they take. The threads of a sweep share one.

    Attributes:
      todo: the number of configs that were tried or are still to be tried.
      done: the number of configs that were tried.
      cases: the number of cases in which something can be run.
      devices: the names of the devices.
      platform: JAX's name of the platform of the devices.
      started: the monotonic time of the start.
    """

    todo: int
    done: int = 0
    cases: int = 0
    devices: tuple[str, ...] = ()
    platform: str = ""
    started: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def advance(self, configs: int) -> None:
        """Add ``configs`` that were tried."""
        with self._lock:
            self.done += configs

    def drop(self, configs: int) -> None:
        """Take off ``configs`` that turned out not to be needed; a negative number adds what was not planned."""
        with self._lock:
            self.todo -= configs

    def progress(
        self,
        kind: ProgressKind,
        *,
        case: Case | None = None,
        kernel: str = "",
        reason: str = "",
        place: int = 0,
    ) -> Progress:
        """An event of ``kind``, with where the sweep stands now."""
        with self._lock:
            done, total = self.done, max(self.todo, self.done)
        elapsed = self.elapsed_s
        return Progress(
            kind=kind,
            done=done,
            total=total,
            elapsed_s=elapsed,
            eta_s=elapsed / done * (total - done) if done else None,
            case=case,
            kernel=kernel,
            reason=reason,
            place=place,
            cases=self.cases,
            devices=self.devices,
            platform=self.platform,
        )
