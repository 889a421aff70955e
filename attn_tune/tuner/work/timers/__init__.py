"""Timers: CUPTI, XPlane and the host clock, behind one interface."""

from attn_tune.tuner.work.timers.choose import (
    TimerCheck as TimerCheck,
    choose_timer as choose_timer,
    timer_self_check as timer_self_check,
)
from attn_tune.tuner.work.timers.host import HostTimer as HostTimer
from attn_tune.tuner.work.timers.timer import (
    Check as Check,
    Launch as Launch,
    Timer as Timer,
    TimerError as TimerError,
    unchecked as unchecked,
)
