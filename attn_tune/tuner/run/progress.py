"""Events of a running sweep: trials, and progress between them."""

import enum
from dataclasses import dataclass

from attn_tune.schema.trial import Trial
from attn_tune.tuner.plan.case import Case


class ProgressKind(enum.StrEnum):
    """The steps of a sweep that are announced."""

    SWEEP_STARTED = "sweep_started"
    CASE_STARTED = "case_started"
    KERNEL_STARTED = "kernel_started"
    FINALS_STARTED = "finals_started"
    CASE_FINISHED = "case_finished"
    CASE_RETURNED = "case_returned"
    SWEEP_FINISHED = "sweep_finished"


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The state of a sweep.

    ``done`` and ``total`` count configs. ``eta_s`` is None until something was measured. ``reason`` of
    ``SWEEP_FINISHED`` is ``"finished"``, ``"stopped"`` or ``"budget"``; of other kinds a remark, mostly empty.
    After ``CASE_RETURNED`` (its device is lost, for that ``reason``) the rest of the case starts elsewhere, if it can.
    """

    kind: ProgressKind
    done: int
    total: int
    elapsed_s: float
    eta_s: float | None = None
    case: Case | None = None
    kernel: str = ""
    reason: str = ""


type Event = Trial | Progress
