"""The choice of a timer: the device's own clock where it works, checked against the host's."""

from dataclasses import dataclass

from attn_tune.schema.errors import UsageError
from attn_tune.tuner.work.timers.cupti import cupti_timer
from attn_tune.tuner.work.timers.host import HostTimer
from attn_tune.tuner.work.timers.timer import Launch, Timer, TimerError
from attn_tune.tuner.work.timers.xplane import xplane_timer

_BUILD = {"cupti": cupti_timer, "xplane": xplane_timer, "host": HostTimer}
_ORDER = {"gpu": ("cupti", "xplane", "host"), "tpu": ("xplane", "host")}
# Device time may not be above the host's, which holds the launch too; and not far below it once launches pile up.
_LOWEST, _HIGHEST = 0.8, 1.2


@dataclass(frozen=True, kw_only=True)
class TimerCheck:
    """One timer against the host clock, on a matrix product that runs for milliseconds."""

    name: str
    ok: bool
    device_ns: int = 0
    host_ns: int = 0
    reason: str = ""


def choose_timer(name: str = "") -> Timer:
    """The timer called ``name``, or the first one that works on the default backend.

    Raises:
      UsageError: no timer has this name.
      TimerError: the timer that was asked for does not work here.
    """
    import jax

    if name:
        if name not in _BUILD:
            raise UsageError(f"unknown timer {name!r}; known: {', '.join(_BUILD)}")
        timer = _BUILD[name]()
        _try(timer)
        return timer
    for candidate in _ORDER.get(jax.default_backend(), ("host",))[:-1]:
        try:
            timer = _BUILD[candidate]()
            _try(timer)
        except (TimerError, RuntimeError):
            continue
        return timer
    return HostTimer()


def timer_self_check(size: int = 8192, repeats: int = 10) -> tuple[TimerCheck, ...]:
    """Runs a known matrix product under every timer of this backend and compares it with the host clock.

    The host's figure averages ``repeats`` launches behind one wait, so that launching hides behind running. A timer is
    ok within 20 % of it.
    """
    import jax

    launch = _matmul(size)
    jax.block_until_ready(launch.run())
    host = min(HostTimer().sample([Launch(run=launch.run, repeats=repeats)] * 3, None))
    checks = []
    for name in _ORDER.get(jax.default_backend(), ("host",)):
        try:
            device = sorted(_BUILD[name]().sample([launch] * 5, None))[2]
        except (TimerError, RuntimeError) as error:
            checks.append(TimerCheck(name=name, ok=False, host_ns=host, reason=str(error)))
            continue
        ok = _LOWEST <= device / host <= _HIGHEST
        reason = "" if ok else f"{device} ns where the host clock sees {host} ns"
        checks.append(TimerCheck(name=name, ok=ok, device_ns=device, host_ns=host, reason=reason))
    return tuple(checks)


def _try(timer: Timer) -> None:
    import jax

    launch = _matmul(256)
    jax.block_until_ready(launch.run())
    timer.sample([launch, launch], None)


def _matmul(size: int) -> Launch:
    import jax
    import jax.numpy as jnp

    x = jnp.ones((size, size), jnp.bfloat16 if jax.default_backend() != "cpu" else jnp.float32)
    product = jax.jit(lambda a: a @ a).lower(x).compile()
    return Launch(run=lambda: product(x))
