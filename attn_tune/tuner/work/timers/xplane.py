"""Durations from the profiler's XPlane trace: kernels on a GPU's streams, modules on a TPU core."""

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from attn_tune.tuner.work.timers.records import Record
from attn_tune.tuner.work.timers.timer import TimerError
from attn_tune.tuner.work.timers.traced import TracedTimer

# On a TPU one event of this line is one executed program, from its first to its last operation.
_TPU_LINE = "XLA Modules"
_GPU_LINE = "Stream"
# What a stream shows besides kernels.
_COPIES = ("memcpy", "memset")


def xplane_timer() -> TracedTimer:
    """A timer over ``jax.profiler``; works on GPU and TPU."""
    return TracedTimer("xplane", _trace)


def device_records(planes: Iterable[Any]) -> list[Record]:
    """The device's records in the order they began.

    On a GPU the kernels of every stream, on a TPU the executed modules. Only the first device is read: one worker
    holds one device.

    Raises:
      TimerError: the trace has no device plane.
    """
    devices = sorted(
        (p for p in planes if p.name.startswith("/device:") and ":CPU" not in p.name),
        key=lambda p: p.name,
    )
    if not devices:
        raise TimerError("the profiler's trace holds no device plane (is this a CPU?)")
    plane = devices[0]
    tpu = plane.name.startswith("/device:TPU")
    events = [
        event
        for line in plane.lines
        if (line.name == _TPU_LINE if tpu else line.name.startswith(_GPU_LINE))
        for event in line.events
        if not event.name.lower().startswith(_COPIES)
    ]
    events.sort(key=lambda event: event.start_ns)
    return [Record(_stable_name(event.name), round(event.duration_ns)) for event in events]


def _stable_name(name: str) -> str:
    """A module's name without the run's fingerprint: ``jit_f(123)`` is ``jit_f``."""
    return name.partition("(")[0]


def _trace(work: Callable[[], None]) -> list[Record]:
    import jax

    with tempfile.TemporaryDirectory(prefix="attn-tune-trace-") as folder:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        options.host_tracer_level = 0
        with jax.profiler.trace(folder, profiler_options=options):
            work()
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        if not files:
            raise TimerError("the profiler wrote no XPlane file")
        return device_records(jax.profiler.ProfileData.from_file(str(files[-1])).planes)
