"""The choice of a timer: the device's own clock where it works."""

from attn_tune.schema.errors import UsageError
from attn_tune.tuner.work.timers.cupti import cupti_timer
from attn_tune.tuner.work.timers.host import HostTimer
from attn_tune.tuner.work.timers.timer import Launch, Timer, TimerError
from attn_tune.tuner.work.timers.xplane import xplane_timer

_BUILD = {"cupti": cupti_timer, "xplane": xplane_timer, "host": HostTimer}
_ORDER = {"gpu": ("cupti", "xplane", "host"), "tpu": ("xplane", "host")}


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


def _try(timer: Timer) -> None:
    """Time a small matrix product.

    Raises:
      TimerError, RuntimeError: the timer does not work here.
    """
    import jax
    import jax.numpy as jnp

    x = jnp.ones((256, 256), jnp.float32)
    product = jax.jit(lambda a: a @ a).lower(x).compile()
    launch = Launch(run=lambda: product(x))
    jax.block_until_ready(launch.run())
    timer.sample([launch, launch], None)
